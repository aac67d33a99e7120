"""Tells what an archive is by its content: names are often wrong, and downloads are often web pages.

A folder is read as if it were an archive.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from pathlib import Path

from mmf_win.archives.base import (
    BLOCK_BYTES,
    Archive,
    ExtractedFile,
    Member,
    PasswordCallback,
    TargetChooser,
    split_archive_error,
    unsupported_error,
    write_member,
)
from mmf_win.archives.zip import ZipArchive
from mmf_win.errors import ArchiveError
from mmf_win.files import iter_files
from mmf_win.sniffing import HEAD_BYTES, CommandHint, recognize_substitute
from mmf_win.threads import AdvanceCallback

_ZIP_SIGNATURES = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")  # a member, an empty zip, a part of several
_SEVEN_ZIP_SIGNATURE = b"7z\xbc\xaf\x27\x1c"
_GZIP_SIGNATURE = b"\x1f\x8b"


def open_archive(path: Path, ask: PasswordCallback | None = None, *, listed: bool = True) -> Archive:
    """Open an archive for reading, whatever its suffix says; a compressed tar is read to its end for that.

    Args:
        path: a zip, 7z, tar or tar.gz file, or a folder.
        ask: answers with the password; called once, and only if something is encrypted.
        listed: without it, the members of a tar are not listed; see
            :class:`~mmf_win.archives.tar.TarArchive`.

    Raises:
        ArchiveError: there is no such file, it is no archive, it is damaged, or a member's name is an attack.
        PasswordError: even the list of members is encrypted, and the password is missing or wrong.
    """
    if path.is_dir():
        return FolderArchive(path)
    if not path.is_file():
        raise ArchiveError(f"{path}: no such file or folder")
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if found := recognize_substitute(head):
        kind, hint = found
        raise unsupported_error(path, f"this is {kind}, not a zip, 7z or tar", hint=hint)
    try:
        return _open(path, head, ask, list_members=listed)
    except ArchiveError as error:
        if re.fullmatch(r"\.(\d|z)\d\d", path.suffix, re.IGNORECASE):
            first = ".zip" if path.suffix[1] in "zZ" else ".001"
            raise split_archive_error(path, path.with_suffix(first).name) from error
        raise


def _open(path: Path, head: bytes, ask: PasswordCallback | None, *, list_members: bool) -> Archive:
    if head.startswith(_ZIP_SIGNATURES):
        return ZipArchive(path, ask)
    if head.startswith(_SEVEN_ZIP_SIGNATURE):
        from mmf_win.archives.sevenzip import SevenZipArchive

        return SevenZipArchive(path, ask)

    from mmf_win.archives.tar import TarArchive

    if head.startswith(_GZIP_SIGNATURE) or _is_tar(head):
        return TarArchive(path, head.startswith(_GZIP_SIGNATURE), list_members=list_members)
    with suppress(zipfile.BadZipFile):  # a Zip64 that is damaged, or the last part of several
        if not zipfile.is_zipfile(path):  # a self-extracting one begins with a program
            others = "zip, 7z, tar, tar.gz and folders are read; if it is another archive"
            hint = CommandHint(f"{others}, unpack it with 7-Zip")
            raise unsupported_error(path, "not an archive that mmfw reads", hint=hint)
    return ZipArchive(path, ask)


def _is_tar(head: bytes) -> bool:
    """Whether a tar begins like this: its header has a checksum, even in old tars without a magic."""
    import tarfile  # most archives are none, and this would be a good part of the time that a small one takes

    with suppress(tarfile.HeaderError):
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
        return True
    return False


class FolderArchive(Archive):
    """The files under a folder. Links are followed: the owner of the folder has made them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.members = self._mark_name_problems(
            Member(file.relative_to(path).as_posix(), file.stat().st_size) for file in iter_files(path)
        )

    def _extract(
        self, choose: TargetChooser, progress: AdvanceCallback
    ) -> Generator[ExtractedFile, None, None]:
        for member, target in self._select_targets(self.members, choose).items():
            with (self.path / member.name).open("rb") as file:
                done = write_member(
                    self.path, member, target, iter(partial(file.read, BLOCK_BYTES), b""), progress
                )
            yield done
