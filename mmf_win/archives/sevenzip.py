"""7z, read by py7zr."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any

import py7zr
import py7zr.archiveinfo
import py7zr.compressor
from py7zr.exceptions import CrcError, PasswordRequired
from py7zr.helpers import calculate_key
from py7zr.io import NullIO, Py7zIO, WriterFactory

from mmf_win.archives.base import (
    MOST_DICTIONARY,
    MOST_MEMBERS,
    Archive,
    Ask,
    Choose,
    Extracted,
    Member,
    Output,
    with_problems,
    wrong_password,
)
from mmf_win.archives.names import safe_name
from mmf_win.errors import ArchiveError, MmfwError
from mmf_win.threads import Advance, ThreadGroup, share_out, worker_count

# DOC/Methods.txt of the 7-Zip source: 7zAES, PPMD, LZMA, LZMA2
_AES, _PPMD = b"\x06\xf1\x07\x01", b"\x03\x04\x01"
_LZMA, _LZMA2 = b"\x03\x01\x01", b"\x21"

_SMALLEST_SHARE = 8 << 20

# py7zr's own limits allow lists that take gigabytes.
py7zr.archiveinfo.MAX_NUMFILES = py7zr.archiveinfo.MAX_SUBSTREAMS = MOST_MEMBERS
py7zr.archiveinfo.MAX_NUMFOLDERS = MOST_MEMBERS
py7zr.archiveinfo.MAX_HEADER_SIZE = 1 << 25

# py7zr 1.0 and 1.1 make a key, by half a million steps of SHA-256, again for each solid block and each pass.
py7zr.compressor.calculate_key = lru_cache(maxsize=4)(calculate_key)


@dataclass(frozen=True)
class SevenZipMember(Member):
    """A file in a 7z.

    Attributes:
        raw_name: how the archive spells its name.
        stream: which compressed stream it is in.
    """

    raw_name: str = field(kw_only=True)
    stream: int = field(kw_only=True)


class SevenZipArchive(Archive):
    """A 7z file. Many members share a compressed stream, which is read from its beginning each time.

    Those of different streams are extracted at the same time.
    """

    format = "7z"

    def __init__(self, path: Path, ask: Ask | None = None) -> None:
        super().__init__(path, ask)
        with path.open("rb") as file:
            try:
                opened = self._open(file)
            except PasswordRequired:  # even the list of members is encrypted
                self._require_password()
                file.seek(0)
                try:
                    opened = self._open(file)
                except ArchiveError:
                    raise wrong_password(path) from None
            self.members: Sequence[SevenZipMember] = with_problems(self._list(opened))

    def _open(self, file: IO[bytes]) -> Any:
        # A file object, not a path: py7zr would unpack a path in threads of its own.
        try:
            return py7zr.SevenZipFile(file, password=self._password)
        except PasswordRequired:
            raise
        except Exception as error:  # on nonsense py7zr's parser fails with whatever it stumbles over
            raise self._error(f"not a valid 7z: {error}") from error

    def _list(self, archive: Any) -> Iterator[SevenZipMember]:
        for file in archive.files:
            if file.is_directory:
                continue
            stream = None if file.emptystream else file.folder
            coders = [] if stream is None else stream.coders
            methods = {coder["method"] for coder in coders}
            problem = "it is a link" if file.is_symlink or file.is_junction else None
            if _PPMD in methods:  # pyppmd 1.3 ends the whole process on damage, or on a wrong password
                problem = "it is compressed by PPMd, whose decoder may crash; pack it again by LZMA2"
            elif any(_dictionary(coder) > MOST_DICTIONARY for coder in coders):
                problem = "it takes too much memory to unpack; pack it again with a smaller dictionary"
            yield SevenZipMember(
                self._safe_name(file.filename),
                file.uncompressed,
                _AES in methods,
                file.crc32,
                problem,
                raw_name=file.filename,
                stream=id(stream),
            )

    def _password_fits(self) -> bool:
        first: dict[int, SevenZipMember] = {}  # only the first of a stream can be read cheaply
        for member in self.members:
            if member.encrypted and not member.problem:
                first.setdefault(member.stream, member)
        if not first:  # nothing of it will be extracted
            return True
        cheapest = min(first.values(), key=lambda member: member.size)
        try:
            self._unpack([cheapest.name], lambda _: NullIO())
        except Exception as error:
            if not _is_damage(error):
                raise
            return False
        return True

    def _extract(self, choose: Choose, progress: Advance) -> Generator[Extracted, None, None]:
        targets = self._chosen(self.members, choose)
        by_stream: dict[int, list[SevenZipMember]] = defaultdict(list)
        for member in targets:
            by_stream[member.stream].append(member)
        count = max(1, min(worker_count(), sum(member.size for member in targets) // _SMALLEST_SHARE))
        shares = share_out(by_stream.values(), count, lambda members: sum(m.size for m in members))
        chosen = [{m.name: (m, targets[m]) for members in share for m in members} for share in shares]
        group: ThreadGroup[Extracted] = ThreadGroup()
        yield from group.run([partial(self._extract_share, share, group) for share in chosen], progress)

    def _extract_share(
        self, wanted: Mapping[str, tuple[Member, Path]], group: ThreadGroup[Extracted]
    ) -> None:
        """A thread's work."""
        current: Output | None = None

        def finish_current() -> None:
            if current is not None:
                group.report(current.finish())

        def open_next(name: str) -> Py7zIO:
            nonlocal current
            finish_current()
            current = Output(self.path, *wanted[name], group.advance)
            return _Sink(current.write)

        try:
            self._unpack(wanted, open_next)
            finish_current()
        except CrcError as error:
            raise self._error("its checksum (CRC-32) is wrong", error.args[2]) from error
        except Exception as error:
            if not _is_damage(error):
                raise
            raise self._error(f"damaged: {error}") from error
        finally:
            if current is not None:
                current.close()

    def _unpack(self, names: Collection[str], into: Callable[[str], Py7zIO]) -> None:
        """One pass over the archive; ``into`` is asked for each member's writer when its turn comes."""
        with self.path.open("rb") as file, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as nowhere:
            # py7zr judges names by the folder that it would unpack to, following the links there. Nothing is
            # written to this empty one; it keeps that judgement from depending on the user's folders.
            root = Path(nowhere).resolve()
            factory = _Factory(lambda joined: into(safe_name(Path(joined).relative_to(root).as_posix())))
            targets = {member.raw_name for member in self.members if member.name in names}
            with self._open(file) as archive:
                archive.extract(path=root, targets=targets, factory=factory)


def _dictionary(coder: Mapping[str, Any]) -> int:
    """Bytes of the dictionary of LZMA or LZMA2; 0 for anything else."""
    properties: bytes = coder.get("properties") or b""
    if coder["method"] == _LZMA:
        return int.from_bytes(properties[1:5], "little")
    if coder["method"] == _LZMA2 and properties:
        return (2 | properties[0] & 1) << (properties[0] // 2 + 11)
    return 0


def _is_damage(error: Exception) -> bool:
    """Whether py7zr, or a library below it, stumbled over the content: each has errors of its own for that.

    For bz2, damage is an OSError; unlike those of the system it has no number.
    """
    return not isinstance(error, (MmfwError, MemoryError)) and getattr(error, "errno", None) is None


class _Factory(WriterFactory):  # type: ignore[misc]  # py7zr has no types for us
    """A function in the form that py7zr wants."""

    def __init__(self, create: Callable[[str], Py7zIO]) -> None:
        self._create = create

    def create(self, filename: str) -> Py7zIO:
        return self._create(filename)


class _Sink(NullIO):  # type: ignore[misc]
    """Hands what py7zr unpacks to a function."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write

    def write(self, s: bytes | bytearray) -> int:
        self._write(bytes(s))
        return len(s)
