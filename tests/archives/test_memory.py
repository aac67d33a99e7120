"""Archive bombs, opened in a process with limited memory and CPU time."""

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


def _header(name: str, size: int = 0, keywords: dict[str, str] | None = None) -> bytes:
    info = hostile_archives.tar_member(name, pax_headers=keywords)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)


def deep_names(path: Path) -> None:
    """Write a tar.gz of a few hundred bytes whose member is in 120,000 nested folders."""
    _tar_gz(path, [hostile_archives.tar_member("a/" * 120_000 + "b").tobuf(tarfile.GNU_FORMAT)])


def deep_names_in_zip(path: Path) -> None:
    """Write a zip with eight members, each in 32,000 separate nested folders."""
    deep = "a/" * 32_000
    hostile_archives.write_zip(path, {f"{number}{deep}x": b"x" for number in range(8)})


def global_keywords(path: Path) -> None:
    """Write many global headers whose keywords tarfile would copy for each following member."""
    headers = (tarfile.TarInfo.create_pax_global_header({f"{n}-{k}": "v" for k in range(1000)}) for n in range(50))
    _tar_gz(path, [*headers, *[_header("x")] * 3000])


def keywords_per_member(path: Path) -> None:
    """Write members with large headers, whose total size is limited."""
    _tar_gz(path, [_header("x", keywords={"comment": "z" * 60_000})] * 3000)


def many_sparse_parts(path: Path) -> None:
    """Write a sparse file with millions of parts."""
    keywords = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x"}
    parts = b"100000000\n" + b"0\n" * (1 << 24)
    _tar_gz(path, [_header("x", len(parts), keywords | {"GNU.sparse.realsize": "9"}), parts])


def huge_directory(path: Path) -> None:
    """Write a zip whose directory has a million members with the same data."""
    entry = b"PK\1\2" + struct.pack("<6H3I5H2I", 20, 20, *[0] * 7, 8, *[0] * 6) + b"12345678"
    count, size = 1_000_000, 1_000_000 * len(entry)
    zip64 = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, 31)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, 31 + size, 1)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    path.write_bytes(b"PK\3\4" + bytes(27) + entry * count + zip64 + locator + end)


def many_files_in_7z(path: Path) -> None:
    """Write a 7z of 45 bytes with eight million files."""
    _seven_zip(path, b"", b"\x01\x05" + _number(8_000_000) + bytes(2))


def huge_header_in_7z(path: Path) -> None:
    """Write a 7z whose compressed header unpacks to 250 MiB."""
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
    *(deep_names, deep_names_in_zip, global_keywords, keywords_per_member, many_sparse_parts, huge_directory),
    *(many_files_in_7z, huge_header_in_7z),
)


@pytest.mark.skipif(sys.platform != "linux", reason="needs resource limits, which Windows does not have")
def test_archive_bombs_need_less_than_1_gib_and_30_seconds(user_dir: Path) -> None:
    for make in BOMBS:
        make(user_dir / make.__name__)
    paths = [str(user_dir / make.__name__) for make in BOMBS]
    child = subprocess.run([sys.executable, "-X", "utf8", "-c", _CHILD, *paths], capture_output=True, encoding="utf-8")
    assert child.stdout.splitlines() == paths, child.stderr


@pytest.mark.parametrize("pack", [write_tar, hostile_archives.write_zip, write_7z])
def test_archive_with_too_many_members_is_rejected(
    pack: Callable[[Path, Files], Path], user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_MEMBERS", 2)
    with pytest.raises(ArchiveError, match=r"a\.b: .*2"):
        open_archive(pack(user_dir / "a.b", {"x": b"1", "y": b"2", "z": b"3"}))


def test_too_large_dictionary_is_rejected(user_dir: Path) -> None:
    def unpacked(code: int) -> bytes:
        path = hostile_archives.seven_zip_with_dictionary(user_dir / "a.b", {"x": b"content"}, code)
        list(open_archive(path).extract(choose_members({"x": user_dir / "x"})))
        return (user_dir / "x").read_bytes()

    assert unpacked(32) == b"content"  # 256 MiB
    (user_dir / "x").unlink()
    with pytest.raises(ArchiveError, match=r"a\.b: .*memory"):
        unpacked(33)
    assert not (user_dir / "x").exists()
