"""Base class of all archive formats: a list of members and their verified extraction."""

from __future__ import annotations

import hashlib
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from threading import Event
from typing import Protocol, TypeAlias, TypeVar

from zlib_ng import zlib_ng

from mmf_win.archives.names import find_name_collisions, find_name_problem, safe_name
from mmf_win.console import format_command
from mmf_win.errors import ArchiveError, PasswordError, PasswordRequiredError
from mmf_win.files import add_path_to_errors, remove
from mmf_win.sniffing import UNPACK_HINT, CommandHint
from mmf_win.threads import AdvanceCallback, ignore_progress, wait_for_result

#: Bytes read or written in one call.
BLOCK_BYTES = 1 << 20

#: Exception for damaged deflate data.
INFLATE_ERROR: type[Exception] = zlib_ng.error  # type: ignore[assignment]  # zlib-ng annotates it as object

#: Returns the password; called once, before the first encrypted member is read.
PasswordCallback = Callable[[], str]

#: Maximum number of members of an archive; the list of this many still fits into memory.
MAX_MEMBERS = 100_000

#: Maximum LZMA dictionary size; xz -9 uses 64 MiB, and 7z -mx=9 at most this.
MAX_DICTIONARY_BYTES = 256 << 20

GET_AGAIN_HINT = "download the archive again; it may be truncated"
_RENAME_HINT = "rename or remove this file"


class Digest(Protocol):
    """Anything that can be updated with bytes, such as a hashlib object."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add the next bytes."""


@dataclass(frozen=True)
class Member:
    """A file in an archive.

    Attributes:
        name: Relative path with ``/`` as separator, safe to join to a folder.
        size: Uncompressed size in bytes, as declared by the archive.
        encrypted: Whether a password is needed to read it.
        crc32: Checksum recorded in the archive, or None if it records none.
        problem: Why it cannot be extracted (a link, a name that Windows rejects …), or None.
        hint: Next step if there is a problem.
    """

    name: str
    size: int
    encrypted: bool = False
    crc32: int | None = None
    problem: str | None = None
    hint: str = UNPACK_HINT


#: Member → the file to write it to, or None to skip it. Called once per member.
TargetChooser: TypeAlias = Callable[[Member], Path | None]

MemberT = TypeVar("MemberT", bound=Member)


@dataclass(frozen=True)
class ExtractedFile:
    """A member that was written and verified.

    Attributes:
        name: Name of the member.
        target: File that it was written to.
        size: Size in bytes.
        sha256: SHA-256 of the written bytes, in hex.
    """

    name: str
    target: Path
    size: int
    sha256: str


class Archive(ABC):
    """An archive to read. Each pass opens the file again, so there is nothing to close.

    Attributes:
        path: The archive file or folder.
        members: Its files; folders are not listed.
        read_size: Total number of bytes that :meth:`extract` reports to ``progress`` if it reports bytes
            read; None if it reports bytes written.
    """

    read_size: int | None = None

    def __init__(self, path: Path, ask: PasswordCallback | None = None) -> None:
        self.path = path
        self._ask = ask
        self._password: str | None = None
        self._password_checked = False
        self._file_version = _file_version(path)
        self.members: Sequence[Member] = ()

    def check_password(self) -> None:
        """Ask for the password if a member is encrypted, and try it on a few small members.

        Nothing is written.

        Raises:
            PasswordError: The password is wrong, or there is no callback to ask for it.
        """  # noqa: DOC501 - a function makes the error
        if self._password_checked or not any(member.encrypted for member in self.members):
            return
        self._require_password()
        if not self._is_password_correct():
            raise wrong_password_error(self.path)
        self._password_checked = True

    def extract(
        self, choose: TargetChooser, progress: AdvanceCallback = ignore_progress, digest: Digest | None = None
    ) -> Generator[ExtractedFile, None, None]:
        """Write members to files, in the order that is fastest.

        Each member is written directly to its target and removed again if its size or checksum is wrong.
        Use targets in a staging folder until all members are written.

        Args:
            choose: Returns the target of each member; the target's folder is created.
            progress: Called with the number of bytes just written, or just read in the case of a tar.
            digest: Receives the bytes of the archive itself during the extraction; complete at the end.

        Yields:
            Each written file, after its size and CRC were verified. A tar has no checksums of its members;
            a compressed one is verified only at the end.

        Raises:
            ArchiveError: A member is rejected, damaged or does not have its declared size, or the archive
                was changed during the extraction.
            PasswordError: The password is missing or wrong.
        """
        try:
            with _feed_digest(self.path, digest), closing(self._extract(choose, progress)) as extracted:
                yield from extracted
        except ArchiveError as error:
            self._require_unchanged(error)
            raise
        self._require_unchanged()

    def _require_unchanged(self, cause: ArchiveError | None = None) -> None:
        if self._file_version is not None and _file_version(self.path) not in (None, self._file_version):
            hint = "wait until the archive is completely downloaded or copied, then run the same command again"
            raise unsupported_error(self.path, "archive changed while being read", hint=hint) from cause

    def _require_password(self) -> str:
        """Return the password, asking for it on the first call."""
        if self._password is None:
            if self._ask is None:
                raise PasswordRequiredError(f"{self.path}: encrypted, but no password was given")
            self._password = self._ask()
        return self._password

    @abstractmethod
    def _extract(self, choose: TargetChooser, progress: AdvanceCallback) -> Generator[ExtractedFile, None, None]:
        """Write the chosen members."""

    def _select_targets(self, members: Iterable[MemberT], choose: TargetChooser) -> dict[MemberT, Path]:
        """Return the chosen members with their targets; check the password if one is encrypted."""
        targets = {}
        for member in members:
            if (target := choose(member)) is not None:
                if member.problem:
                    raise unsupported_error(self.path, member.problem, member.name, member.hint)
                targets[member] = target
        if any(member.encrypted for member in targets):
            self.check_password()
        return targets

    def _is_password_correct(self) -> bool:
        """Return whether the password opens the archive; called only for encrypted archives."""
        return True

    @staticmethod
    def _is_intact(member: Member, content: Iterable[bytes | memoryview]) -> bool:
        """Return whether a member can be read and matches its checksum."""
        with suppress(ArchiveError):
            crc = reduce(lambda crc, block: zlib_ng.crc32(block, crc), content, 0)
            return member.crc32 in (None, crc)
        return False

    def _mark_name_problems(self, members: Iterable[MemberT]) -> list[MemberT]:
        """Set ``problem`` for members whose names collide or are not valid on every system."""
        marked = list(members)
        collisions = find_name_collisions(member.name for member in marked)
        hint = CommandHint(_RENAME_HINT if self.path.is_dir() else f"unpack it, {_RENAME_HINT}")
        for index, member in enumerate(marked):
            if not member.problem and (problem := find_name_problem(member.name) or collisions.get(member.name)):
                marked[index] = replace(member, problem=problem, hint=hint)
        return marked

    def _damaged_error(self, reason: str, member: str | None = None) -> ArchiveError:
        """Return the error for a damaged archive or member."""
        return damaged_error(self.path, reason, member)

    def _require_member_limit(self, member_count: int) -> None:
        """Reject an archive with so many members that their list would fill the memory."""
        if member_count > MAX_MEMBERS:
            raise unsupported_error(self.path, f"too many members (limit: {MAX_MEMBERS:,})")

    def _safe_name(self, raw: str) -> str:
        """Return the member's name; reject the archive if the name is unsafe."""
        try:
            return safe_name(raw)
        except ValueError as error:
            hint = "use an archive from another source; this one may be malicious"
            raise unsupported_error(self.path, f"member {raw[:100]!r} rejected: {error}", None, hint) from None


class MemberWriter:
    """Writer of one member; :meth:`close` removes the file unless :meth:`finish` has verified it."""

    def __init__(self, archive: Path, member: Member, target: Path, progress: AdvanceCallback) -> None:
        self._archive, self._member, self._target, self._progress = archive, member, target, progress
        self._size = self._crc = 0
        self._sha256 = hashlib.sha256()
        self._verified = False
        try:
            self._file = target.open("wb")
        except FileNotFoundError:  # checking for the folder each time would cost as much as a small file
            target.parent.mkdir(parents=True, exist_ok=True)
            self._file = target.open("wb")

    def close(self) -> None:
        """Close the file, and remove it unless it was verified."""
        with add_path_to_errors(self._target):
            self._file.close()
        if not self._verified:
            remove(self._target)

    def write(self, block: bytes | memoryview) -> None:
        """Append a block; raise an ArchiveError instead if this exceeds the declared size."""
        self._size += len(block)
        if self._size > self._member.size:
            raise damaged_error(self._archive, "larger than its declared size", self._member.name)
        try:
            self._file.write(block)
        except OSError as error:
            error.filename = error.filename or str(self._target)  # the error of a full disk names no file
            raise
        self._crc = zlib_ng.crc32(block, self._crc)
        self._sha256.update(block)
        self._progress(len(block))

    def finish(self) -> ExtractedFile:
        """Close the file; raise an ArchiveError if its size or checksum differs from the declared one."""
        with add_path_to_errors(self._target):
            self._file.close()
        member = self._member
        if self._size < member.size:
            reason = f"truncated ({self._size} of {member.size} bytes)"
            raise damaged_error(self._archive, reason, member.name)
        if member.crc32 not in (None, self._crc):
            raise damaged_error(self._archive, "checksum mismatch (CRC-32)", member.name)
        self._verified = True
        return ExtractedFile(member.name, self._target, self._size, self._sha256.hexdigest())


def write_member(
    archive: Path, member: Member, target: Path, content: Iterable[bytes | memoryview], progress: AdvanceCallback
) -> ExtractedFile:
    """Write a member to its target and verify it."""
    with closing(MemberWriter(archive, member, target, progress)) as output:
        for block in content:
            output.write(block)
        return output.finish()


@contextmanager
def _feed_digest(path: Path, digest: Digest | None) -> Iterator[None]:
    """Hash a file in a background thread while the block runs; the digest is complete on exit.

    The system reads the file from the disk only once: the hashing and the extracting threads read each part
    shortly after one another, so the second one gets it from the page cache.
    """
    if digest is None:
        yield
        return
    stopped = Event()

    def feed_file() -> None:
        block = bytearray(BLOCK_BYTES)
        while not stopped.is_set() and (size := file.readinto(block)):
            digest.update(memoryview(block)[:size])

    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(1, "mmfw-hash") as pool:
        hashing = pool.submit(feed_file)
        try:
            yield
            wait_for_result(hashing)
        finally:
            stopped.set()


def _file_version(path: Path) -> tuple[int, int] | None:
    """Return size and mtime of a file, or None for a folder or a removed file (open files stay intact)."""
    with suppress(FileNotFoundError):
        status = path.stat()
        return None if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)
    return None


def damaged_error(path: Path, reason: str, member: str | None = None) -> ArchiveError:
    """Return the error for a wrong checksum, a truncated file or an invalid structure."""
    return unsupported_error(path, reason, member, GET_AGAIN_HINT)


def unsupported_error(path: Path, reason: str, member: str | None = None, hint: str = UNPACK_HINT) -> ArchiveError:
    """Return the error for an archive or member that may be intact but is not supported."""
    message = reason if member is None else f"member {member}: {reason}"
    return ArchiveError(message, hint=hint, prefix=f"{path}:")


def split_archive_error(path: Path, first_part: str) -> ArchiveError:
    """Return the error for one part of a split archive; its hint opens ``first_part`` with 7-Zip."""
    command = format_command("7z", "x", first_part)
    hint = CommandHint(f"put all parts of the archive into one folder, run `{command}` there")
    return unsupported_error(path, "one part of a split archive", hint=hint)


def wrong_password_error(path: Path) -> PasswordError:
    """Return the error for a password that does not open the archive."""
    hint = "check upper and lower case, and spaces at the end"
    return PasswordError(f"{path}: wrong password", hint=hint)
