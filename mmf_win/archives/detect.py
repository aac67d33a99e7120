"""Detection of the archive format by content.

File names may be wrong, and downloads may be web pages. A folder is read like an archive.
"""

from __future__ import annotations

import re
import warnings
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

_ZIP_SIGNATURES = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")  # a member, an empty zip, a split zip
_SEVEN_ZIP_SIGNATURE = b"7z\xbc\xaf\x27\x1c"
_GZIP_SIGNATURE = b"\x1f\x8b"


def open_archive(
    path: Path, ask: PasswordCallback | None = None, *, list_members: bool = True, listed: bool | None = None
) -> Archive:
    """Open an archive for reading; the file's suffix is ignored.

    Args:
        path: A zip, 7z, tar or tar.gz file, or a folder.
        ask: Returns the password; called at most once, and only if something is encrypted.
        list_members: Whether to list the members of a tar, for which a compressed one is read to its end;
            see :class:`~mmf_win.archives.tar.TarArchive`.
        listed: Deprecated name of ``list_members``.

    Returns:
        The archive; nothing is extracted yet.

    Raises:
        ArchiveError: The file does not exist, is no archive, is damaged, or a member's name is unsafe.
        PasswordError: The list of members is encrypted, and the password is missing or wrong.
    """  # noqa: DOC501 - a function makes the error
    if listed is not None:
        warnings.warn("listed is deprecated, use list_members", DeprecationWarning, stacklevel=2)
        list_members = listed
    if path.is_dir():
        return FolderArchive(path)
    if not path.is_file():
        raise ArchiveError(f"{path}: file or folder not found", hint="check the path")
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if substitute := recognize_substitute(head):
        kind, hint = substitute
        raise unsupported_error(path, f"{kind}, not a zip, 7z or tar", hint=hint)
    try:
        return _open(path, head, ask, list_members=list_members)
    except ArchiveError as error:
        if re.fullmatch(r"\.(\d|z)\d\d", path.suffix, re.IGNORECASE):
            first_suffix = ".zip" if path.suffix[1] in "zZ" else ".001"
            raise split_archive_error(path, path.with_suffix(first_suffix).name) from error
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
    with suppress(zipfile.BadZipFile):  # a damaged Zip64, or the last part of a split zip
        if not zipfile.is_zipfile(path):  # a self-extracting zip begins with a program
            hint = CommandHint("use a zip, 7z, tar or tar.gz archive, or a folder; unpack any other archive with 7-Zip")
            raise unsupported_error(path, "not a supported archive", hint=hint)
    return ZipArchive(path, ask)


def _is_tar(head: bytes) -> bool:
    """Return whether ``head`` is a tar header, which has a checksum even in old tars without a magic."""
    import tarfile  # imported late: most archives are no tar, and opening a small one would take much longer

    with suppress(tarfile.HeaderError):
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
        return True
    return False


class FolderArchive(Archive):
    """The files below a folder. Links are followed, since the folder's owner created them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        members = (Member(file.relative_to(path).as_posix(), file.stat().st_size) for file in iter_files(path))
        self.members = self._mark_name_problems(members)

    def _extract(self, choose: TargetChooser, progress: AdvanceCallback) -> Generator[ExtractedFile, None, None]:
        for member, target in self._select_targets(self.members, choose).items():
            with (self.path / member.name).open("rb") as file:
                done = write_member(self.path, member, target, iter(partial(file.read, BLOCK_BYTES), b""), progress)
            yield done
