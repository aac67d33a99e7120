"""What every kind of archive has in common: a list of members, and one verified way to write them out."""

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

#: Bytes that are read or written in one call.
BLOCK_BYTES = 1 << 20

#: What is raised for compressed data that is damaged.
INFLATE_ERROR: type[Exception] = zlib_ng.error  # type: ignore[assignment]  # zlib-ng's types call it an object

#: Answers with the password; called once, when something encrypted is to be read.
PasswordCallback = Callable[[], str]

#: What is listed of an archive; so many members of the smallest size still fit into the memory.
MAX_MEMBERS = 100_000

#: Bytes that LZMA may keep of what it has unpacked; xz -9 takes 64 MiB, and 7z -mx=9 at most this.
MAX_DICTIONARY_BYTES = 256 << 20

GET_AGAIN_HINT = "the file may be incomplete or damaged; get it again"
_RENAME_HINT = "rename or remove this file"


class Digest(Protocol):
    """What can be fed with bytes, as the objects of hashlib can."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Take the next bytes."""


@dataclass(frozen=True)
class Member:
    """A file in an archive.

    Attributes:
        name: relative path with ``/`` between its parts, safe to join to a folder.
        size: bytes when unpacked, as the archive declares them.
        encrypted: whether a password is needed to read it.
        crc32: checksum that the archive keeps, None where it keeps none.
        problem: why it will not be extracted (a link, a name that Windows refuses …), None for most.
        hint: the next step where there is a problem.
    """

    name: str
    size: int
    encrypted: bool = False
    crc32: int | None = None
    problem: str | None = None
    hint: str = UNPACK_HINT


#: Member → the file to write it to; None leaves it out. Asked once for each.
TargetChooser: TypeAlias = Callable[[Member], Path | None]

MemberT = TypeVar("MemberT", bound=Member)


@dataclass(frozen=True)
class ExtractedFile:
    """A member that was written and verified.

    Attributes:
        name: of the member.
        target: the file.
        size: bytes.
        sha256: hash in hex, made of the bytes as they were written.
    """

    name: str
    target: Path
    size: int
    sha256: str


class Archive(ABC):
    """An archive to read. Each pass opens the file again, so nothing is to be closed.

    Attributes:
        path: the archive itself.
        members: its files; folders are not listed.
        read_size: bytes that ``progress`` of :meth:`extract` is told of, where all of the archive is read;
            None where these are the bytes that are written.
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
        """Ask for the password if a member is encrypted, and try it on a few small ones, writing nothing.

        Raises PasswordError where it is wrong, or there is nobody to ask.
        """
        if self._password_checked or not any(member.encrypted for member in self.members):
            return
        self._require_password()
        if not self._is_password_correct():
            raise wrong_password_error(self.path)
        self._password_checked = True

    def extract(
        self, choose: TargetChooser, progress: AdvanceCallback = ignore_progress, digest: Digest | None = None
    ) -> Generator[ExtractedFile, None, None]:
        """Write members to files, in whatever order is fastest.

        Each is written to its target straight away and removed again if its size or checksum is wrong, so
        let the targets lie in a staging folder until all are there.

        Args:
            choose: says for each member where to write it; the target's folder is made.
            progress: called with the number of bytes just written, or of a tar, just read.
            digest: is fed with the archive itself, beside the extraction; complete when this has ended.

        Yields:
            what was written, after its size and CRC were verified. A tar keeps no checksum of a member;
            only at the end is it known that a compressed one is intact.

        Raises:
            ArchiveError: a member is refused, damaged, or not of the size it declares, or the archive was
                changed meanwhile.
            PasswordError: the password is missing or wrong.
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
            hint = "wait until its download or copy is complete"
            raise unsupported_error(self.path, "it was changed while it was read", hint=hint) from cause

    def _require_password(self) -> str:
        """The password, asked for when it is first needed."""
        if self._password is None:
            if self._ask is None:
                raise PasswordRequiredError(f"{self.path} is encrypted and no password was given")
            self._password = self._ask()
        return self._password

    @abstractmethod
    def _extract(
        self, choose: TargetChooser, progress: AdvanceCallback
    ) -> Generator[ExtractedFile, None, None]:
        """Write the chosen members."""

    def _select_targets(self, members: Iterable[MemberT], choose: TargetChooser) -> dict[MemberT, Path]:
        """The members that are chosen, each with its target; asks for the password if one needs it."""
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
        """Whether the given password opens the archive; asked only of encrypted ones."""
        return True

    @staticmethod
    def _is_intact(member: Member, content: Iterable[bytes | memoryview]) -> bool:
        """Whether a member can be read and has its checksum."""
        with suppress(ArchiveError):
            crc = reduce(lambda crc, block: zlib_ng.crc32(block, crc), content, 0)
            return member.crc32 in (None, crc)
        return False

    def _mark_name_problems(self, members: Iterable[MemberT]) -> list[MemberT]:
        """``members``, with those marked whose names clash or cannot be written everywhere."""
        listed = list(members)
        twins = find_name_collisions(member.name for member in listed)
        hint = CommandHint(_RENAME_HINT if self.path.is_dir() else f"unpack it, {_RENAME_HINT}")
        for at, member in enumerate(listed):
            if not member.problem and (problem := find_name_problem(member.name) or twins.get(member.name)):
                listed[at] = replace(member, problem=problem, hint=hint)
        return listed

    def _damaged_error(self, reason: str, member: str | None = None) -> ArchiveError:
        """What is wrong with the archive, or with one member of it."""
        return damaged_error(self.path, reason, member)

    def _require_member_limit(self, member_count: int) -> None:
        """Refuse an archive whose list of members is a bomb."""
        if member_count > MAX_MEMBERS:
            raise unsupported_error(self.path, f"it has more than {MAX_MEMBERS:,} members")

    def _safe_name(self, raw: str) -> str:
        """The member's name; refuses the archive when that is an attack."""
        try:
            return safe_name(raw)
        except ValueError as error:
            hint = "this archive may be an attack; get it from another place"
            raise unsupported_error(
                self.path, f"member {raw[:100]!r} is refused: {error}", hint=hint
            ) from None


class MemberWriter:
    """A member on its way to disk; :meth:`close` leaves no file unless :meth:`finish` has verified it."""

    def __init__(self, archive: Path, member: Member, target: Path, progress: AdvanceCallback) -> None:
        self._archive, self._member, self._target, self._progress = archive, member, target, progress
        self._size = self._crc = 0
        self._sha256 = hashlib.sha256()
        self._verified = False
        try:
            self._file = target.open("wb")
        except FileNotFoundError:  # to look for the folder each time would cost as much as a small file
            target.parent.mkdir(parents=True, exist_ok=True)
            self._file = target.open("wb")

    def close(self) -> None:
        """Let go of the file, and remove it unless it was verified."""
        with add_path_to_errors(self._target):
            self._file.close()
        if not self._verified:
            remove(self._target)

    def write(self, block: bytes | memoryview) -> None:
        """Append a block; an ArchiveError, and nothing is written, where the member declares less."""
        self._size += len(block)
        if self._size > self._member.size:
            raise damaged_error(self._archive, "it holds more bytes than it declares", self._member.name)
        try:
            self._file.write(block)
        except OSError as error:
            error.filename = error.filename or str(self._target)  # a full disk does not say whose file it was
            raise
        self._crc = zlib_ng.crc32(block, self._crc)
        self._sha256.update(block)
        self._progress(len(block))

    def finish(self) -> ExtractedFile:
        """Close the file; an ArchiveError where its size or checksum is not what the archive declares."""
        with add_path_to_errors(self._target):
            self._file.close()
        member = self._member
        if self._size < member.size:
            raise damaged_error(
                self._archive, f"it ends after {self._size} of {member.size} bytes", member.name
            )
        if member.crc32 not in (None, self._crc):
            raise damaged_error(self._archive, "its checksum (CRC-32) is wrong", member.name)
        self._verified = True
        return ExtractedFile(member.name, self._target, self._size, self._sha256.hexdigest())


def write_member(
    archive: Path,
    member: Member,
    target: Path,
    content: Iterable[bytes | memoryview],
    progress: AdvanceCallback,
) -> ExtractedFile:
    """Write a member to its target and verify it."""
    with closing(MemberWriter(archive, member, target, progress)) as output:
        for block in content:
            output.write(block)
        return output.finish()


@contextmanager
def _feed_digest(path: Path, digest: Digest | None) -> Iterator[None]:
    """Feed a file to a digest, if there is one, in a thread beside the block, at whose end it is complete.

    The system reads the file from the disk only once: whichever thread comes second to a part of it, this one
    or those that extract, finds it in memory.
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
    """What changes with a file's content; None for a folder, and for what is gone: open files stay intact."""
    with suppress(FileNotFoundError):
        now = path.stat()
        return None if stat.S_ISDIR(now.st_mode) else (now.st_size, now.st_mtime_ns)
    return None


def damaged_error(path: Path, reason: str, member: str | None = None) -> ArchiveError:
    """Return the error for a wrong checksum, a file that was cut off, or a broken structure."""
    return unsupported_error(path, reason, member, GET_AGAIN_HINT)


def unsupported_error(
    path: Path, reason: str, member: str | None = None, hint: str = UNPACK_HINT
) -> ArchiveError:
    """Return the error for what may be intact, but is not read."""
    what = reason if member is None else f"member {member}: {reason}"
    return ArchiveError(what, hint=hint, prefix=f"{path}:")


def split_archive_error(path: Path, first_part: str) -> ArchiveError:
    """Return the error for one part of a split archive, whose ``first`` part 7-Zip has to be given."""
    command = format_command("7z", "x", first_part)
    hint = CommandHint(f"put all its parts into one folder, run `{command}` there")
    return unsupported_error(path, "it is one part of a split archive", hint=hint)


def wrong_password_error(path: Path) -> PasswordError:
    """The error for a password that does not open the archive."""
    hint = "upper and lower case count; mind a blank at the end"
    return PasswordError(f"{path}: the password is wrong", hint=hint)
