"""Detection of archive formats by content, and folders."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mmf_win.archives import open_archive
from mmf_win.archives.zipcrypto import write_encrypted_zip
from mmf_win.errors import ArchiveError
from tests.worlds.archive_writers import DATASET_FILES, unpack_all, write_7z, write_tar
from tests.worlds.memes import write_tree


def test_folder_is_read_like_an_archive(user_dir: Path) -> None:
    write_tree(DATASET_FILES, user_dir / "in")
    assert unpack_all(user_dir / "in", user_dir / "out") == DATASET_FILES


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_folder_that_links_to_itself_is_read_once(user_dir: Path) -> None:
    write_tree({"a/x": b"1"}, user_dir / "in")
    (user_dir / "in" / "a" / "again").symlink_to(user_dir / "in", target_is_directory=True)
    archive = open_archive(user_dir / "in")
    assert [member.name for member in archive.members] == ["a/x"]


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_encrypted_zip(path, DATASET_FILES.items(), "x"),
        lambda path: write_7z(path, DATASET_FILES),
        lambda path: write_tar(path, DATASET_FILES, ""),
        lambda path: write_tar(path, DATASET_FILES, "gz"),
    ],
    ids=["zip", "7z", "tar", "tar.gz"],
)
def test_format_is_detected_by_content_not_suffix(write: Callable[[Path], object], user_dir: Path) -> None:
    path = user_dir / "download.rar"
    write(path)
    assert {member.name for member in open_archive(path).members} == DATASET_FILES.keys()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "file or folder not found"),
        (b"", ": an empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n", ": a git-lfs pointer"),
        (b"Rar!\x1a\x07\x01\0", ": a RAR archive"),
        (
            b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
            ": a web page or an error message of a server",
        ),
        (b"\x28\xb5\x2f\xfd" + bytes(100), ": a Zstandard file"),
        (b"just text", "not a supported archive"),
        (b"\n<!DOCTYPE html><html>please log in", ": a web page"),
        (bytes(2048), "not a supported archive"),
        (b"PK\x03\x04" + bytes(500), "not a valid zip"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(500), "not a valid 7z"),
        (b"\x1f\x8b" + bytes(500), "not a valid tar.gz"),
        (gzip.compress(b"a text, not a tar", mtime=0), "not a valid tar.gz"),
    ],
)
def test_error_describes_a_file_that_is_no_archive(content: bytes | None, reason: str, user_dir: Path) -> None:
    path = user_dir / "не архив.zip"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArchiveError, match=reason) as caught:
        open_archive(path)
    assert str(path) in str(caught.value)
