"""No archive takes more memory than a small machine has: bombs are read in a process with a limit."""

from __future__ import annotations

import gzip
import lzma
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from mmf_win.archives import base, open_archive
from mmf_win.errors import ArchiveError
from tests.worlds import hostile_archives
from tests.worlds.archive_writers import choose_members, write_7z, write_tar
from tests.worlds.memes import Files

_CHILD = """\
import resource, sys, time
from pathlib import Path
from mmf_win.archives import open_archive
from mmf_win.errors import ArchiveError

resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for name in sys.argv[1:]:
    seconds = int(time.process_time()) + 30
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    try:
        open_archive(Path(name))
    except ArchiveError as error:
        assert name in str(error) and len(str(error)) < 1000, str(error)[:1000]
    print(name, flush=True)
"""


def _tar_gz(path: Path, parts: Iterable[bytes]) -> None:
    with gzip.open(path, "wb", 1) as file:
        for part in parts:
            file.write(part)
        file.write(bytes(1024))


def _header(name: str, size: int = 0, told: dict[str, str] | None = None) -> bytes:
    info = hostile_archives.tar_member(name, pax_headers=told)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)


def deep_names(path: Path) -> None:
    """A tar.gz of a few hundred bytes whose member lies in 120,000 folders."""
    _tar_gz(path, [hostile_archives.tar_member("a/" * 120_000 + "b").tobuf(tarfile.GNU_FORMAT)])


def deep_names_in_a_zip(path: Path) -> None:
    """Eight members that lie in 32,000 folders each, no two in the same."""
    deep = "a/" * 32_000
    hostile_archives.write_zip(path, {f"{number}{deep}x": b"x" for number in range(8)})


def words_for_all(path: Path) -> None:
    """Many headers for all members that follow, each of which would get a copy of the words in them."""
    headers = (
        tarfile.TarInfo.create_pax_global_header({f"{n}-{k}": "v" for k in range(1000)}) for n in range(50)
    )
    _tar_gz(path, [*headers, *[_header("x")] * 3000])


def words_for_each(path: Path) -> None:
    """Members with many words each, which altogether are refused or forgotten."""
    _tar_gz(path, [_header("x", told={"comment": "z" * 60_000})] * 3000)


def holes(path: Path) -> None:
    """A sparse file in millions of parts."""
    told = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x"}
    parts = b"100000000\n" + b"0\n" * (1 << 24)
    _tar_gz(path, [_header("x", len(parts), told | {"GNU.sparse.realsize": "9"}), parts])


def directory(path: Path) -> None:
    """A zip with a directory of a million members, all of the same few bytes."""
    entry = b"PK\1\2" + struct.pack("<6H3I5H2I", 20, 20, *[0] * 7, 8, *[0] * 6) + b"12345678"
    count, size = 1_000_000, 1_000_000 * len(entry)
    zip64 = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, 31)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, 31 + size, 1)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    path.write_bytes(b"PK\3\4" + bytes(27) + entry * count + zip64 + locator + end)


def files_in_a_7z(path: Path) -> None:
    """A 7z of 45 bytes with eight million files."""
    _seven_zip(path, b"", b"\x01\x05" + _number(8_000_000) + bytes(2))


def header_of_a_7z(path: Path) -> None:
    """A 7z whose packed header unpacks to 250 MiB."""
    size = 250 << 20
    packed = lzma.compress(bytes(size), lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}])
    pack = b"\x06" + _number(0) + _number(1) + b"\x09" + _number(len(packed)) + b"\0"
    folder = b"\x07\x0b" + _number(1) + b"\0" + _number(1) + b"\x21\x21" + _number(1) + b"\x18"
    _seven_zip(path, packed, b"\x17" + pack + folder + b"\x0c" + _number(size) + bytes(2))


def _number(value: int) -> bytes:
    return b"\xff" + struct.pack("<Q", value)


def _seven_zip(path: Path, packed: bytes, header: bytes) -> None:
    start = struct.pack("<QQI", len(packed), len(header), zlib.crc32(header))
    signature = b"7z\xbc\xaf\x27\x1c\0\4" + struct.pack("<I", zlib.crc32(start))
    path.write_bytes(signature + start + packed + header)


BOMBS = (
    *(deep_names, deep_names_in_a_zip, words_for_all, words_for_each, holes, directory),
    *(files_in_a_7z, header_of_a_7z),
)


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits, which Windows has not")
def test_bombs_take_less_than_a_gigabyte_and_thirty_seconds(user_dir: Path) -> None:
    for make in BOMBS:
        make(user_dir / make.__name__)
    paths = [str(user_dir / make.__name__) for make in BOMBS]
    child = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", _CHILD, *paths], capture_output=True, encoding="utf-8"
    )
    assert child.stdout.splitlines() == paths, child.stderr


@pytest.mark.parametrize("pack", [write_tar, hostile_archives.write_zip, write_7z])
def test_an_archive_of_very_many_members_is_refused(
    pack: Callable[[Path, Files], Path], user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_MEMBERS", 2)
    with pytest.raises(ArchiveError, match=r"a\.b: .*2"):
        open_archive(pack(user_dir / "a.b", {"x": b"1", "y": b"2", "z": b"3"}))


def test_a_dictionary_that_would_fill_the_memory_is_refused(user_dir: Path) -> None:
    def unpacked(code: int) -> bytes:
        path = hostile_archives.seven_zip_with_dictionary(user_dir / "a.b", {"x": b"content"}, code)
        opened = open_archive(path)
        list(opened.extract(choose_members({"x": user_dir / "x"})))
        return (user_dir / "x").read_bytes()

    assert unpacked(32) == b"content"  # 256 MiB
    (user_dir / "x").unlink()
    with pytest.raises(ArchiveError, match=r"a\.b: .*memory"):
        unpacked(33)
    assert not (user_dir / "x").exists()
