"""zip: bzip2 and LZMA, and names with either slash."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from mmf_win.archives import open_archive
from mmf_win.errors import ArchiveError, PasswordError
from tests.worlds import hostile_archives
from tests.worlds.archive_writers import choose_all, choose_members, unpack_all
from tests.worlds.memes import Files, dataset_files, read_tree, write_tree
from tests.worlds.tools import requires_tool, run_program

FILES: Files = {"data/words": b"words " * 500_000, "data/图.png": bytes(range(256)) * 9, "data/empty": b""}
METHODS = {"bzip2": zipfile.ZIP_BZIP2, "LZMA": zipfile.ZIP_LZMA}


def write_standard_zip(path: Path, method: str, files: Files) -> Path:
    """Write a zip with the standard library."""
    with zipfile.ZipFile(path, "w", METHODS[method]) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("method", METHODS)
def test_zip_of_the_standard_library_is_extracted(method: str, user_dir: Path) -> None:
    assert unpack_all(write_standard_zip(user_dir / "a.zip", method, FILES), user_dir / "out") == FILES


@requires_tool("7z")
@pytest.mark.parametrize("method", ["BZip2", "LZMA", "LZMA:eos"])
@pytest.mark.parametrize("encryption", ["", "ZipCrypto", "AES256"])
def test_zip_of_7_zip_is_extracted(method: str, encryption: str, user_dir: Path) -> None:
    files = {name: FILES[name] for name in ("data/words", "data/图.png", "data/empty")}
    write_tree(files, user_dir)
    options = ["-psecret", f"-mem={encryption}"] if encryption else []
    run_program("7z", "a", "-tzip", f"-mm={method}", *options, "a.zip", "data", cwd=user_dir)
    assert unpack_all(user_dir / "a.zip", user_dir / "out", "secret") == files
    for number in range(300 if encryption == "ZipCrypto" else 3) if encryption else ():
        with pytest.raises(PasswordError, match="wrong"):
            open_archive(user_dir / "a.zip", lambda number=number: f"wrong {number}").check_password()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [0, 10, (20 << 20) - 1, (20 << 20) + 1])
def test_member_larger_or_smaller_than_declared_is_rejected(method: str, size: int, user_dir: Path) -> None:
    path = write_standard_zip(user_dir / "a.zip", method, {"x": bytes(20 << 20)})
    hostile_archives.declare_size(path, size)
    tracemalloc.start()
    with pytest.raises(ArchiveError, match="member x: "):
        list(open_archive(path).extract(choose_all(user_dir / "out")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read_tree(user_dir / "out") == {}
    assert peak < 16 << 20


@pytest.mark.parametrize("method", METHODS)
def test_high_compression_ratio_is_accepted(method: str, user_dir: Path) -> None:
    path = write_standard_zip(user_dir / "a.zip", method, {"x": bytes(20 << 20)})
    assert path.stat().st_size < (20 << 20) // 2000
    assert unpack_all(path, user_dir / "out") == {"x": bytes(20 << 20)}


@pytest.mark.parametrize(("dictionary", "is_refused"), [(256 << 20, False), (1 << 30, True)])
def test_too_large_dictionary_is_rejected(dictionary: int, is_refused: bool, user_dir: Path) -> None:
    path = write_standard_zip(user_dir / "a.zip", "LZMA", {"x": b"content"})
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 30 + len("x") + 5, dictionary)  # APPNOTE 4.3.7, 5.8.8
    path.write_bytes(data)
    if not is_refused:
        assert unpack_all(path, user_dir / "out") == {"x": b"content"}
        return
    with pytest.raises(ArchiveError, match="member x: needs more than 256 MiB of memory") as caught:
        list(open_archive(path).extract(choose_members({"x": user_dir / "x"})))
    assert caught.value.hint is not None and "7-Zip" in caught.value.hint


@pytest.mark.parametrize("central", ["/", "\\"])
@pytest.mark.parametrize("local", ["/", "\\"])
def test_slashes_may_differ_between_header_and_directory(central: str, local: str, user_dir: Path) -> None:
    path = user_dir / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in dataset_files().items():
            info = zipfile.ZipInfo("x")
            info.filename = info.orig_filename = name.replace("/", local)
            archive.writestr(info, content)
            info.filename = info.orig_filename = name.replace("/", central)
    assert unpack_all(path, user_dir / "out") == dataset_files()


def test_other_name_differences_are_rejected(user_dir: Path) -> None:
    path = hostile_archives.write_zip(user_dir / "a.zip", {"data/x": b"x"})
    hostile_archives.flip_byte(path, path.read_bytes().index(b"data/x") + 5)
    with pytest.raises(ArchiveError, match="local header has another name"):
        open_archive(path)
