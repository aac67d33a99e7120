"""Archives in formats other than zip, and all that comes out of one."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path

import py7zr

from mmf_win.archives import Member, open_archive
from mmf_win.archives.base import Choose
from tests.worlds.memes import Files, memes, tar_gz, tree

FILES: Files = {**memes(), "hateful_memes/empty": b""}


def into(folder: Path) -> Choose:
    """Choose every member."""
    return lambda member: folder / member.name


def only(targets: Mapping[str, Path]) -> Choose:
    """Choose members by their names."""

    def choose(member: Member) -> Path | None:
        return targets.get(member.name)

    return choose


def unpack(path: Path, out: Path, password: str | None = None) -> Files:
    """Everything in the archive, through disk."""
    with open_archive(path, None if password is None else lambda: password) as archive:
        archive.check_password()
        done = list(archive.extract(into(out)))
    assert len(done) == len(tree(out))
    return tree(out)


def write_7z(path: Path, files: Files, password: str | None = None, *, hide_names: bool = False) -> Path:
    """A solid 7z."""
    with py7zr.SevenZipFile(path, "w", password=password, header_encryption=hide_names) as archive:
        for name, content in files.items():
            archive.writestr(content, name)
    return path


def write_tar(path: Path, files: Files, compression: str = "") -> Path:
    """A tar, compressed or not."""
    plain = gzip.decompress(tar_gz(files))
    path.write_bytes(gzip.compress(plain) if compression else plain)
    return path
