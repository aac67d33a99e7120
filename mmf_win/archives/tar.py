"""tar, plain or compressed by gzip."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TypeVar

from mmf_win.archives.base import BLOCK, Archive, Digest, Extracted, Member, with_problems, write_member
from mmf_win.archives.names import naming_problem
from mmf_win.archives.readahead import ReadAhead
from mmf_win.fast_zlib import Inflater, gunzip
from mmf_win.threads import Advance, ignore

T = TypeVar("T")

# Long names and the like stand before a member, and tarfile reads them into memory whatever their size.
_READ_AT_ONCE = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_MOST_HEADER = 1 << 16
_MOST_HEADERS = 1 << 24  # altogether; words take much longer to read than files
_MOST_WORDS = 1000

_DAMAGE: tuple[type[Exception], ...] = (
    tarfile.TarError,
    EOFError,
    *Inflater.error,
    OSError,  # of gzip; unlike those of the system it has no number
    ValueError,  # a number of tarfile's that is none, or too large
    RecursionError,  # headers that each stand before another header
)


class TarArchive(Archive):
    """A tar. A compressed one is read through once to list it, which also verifies its checksum.

    Members that are taken as they come, by :meth:`extract_in_order` or :meth:`hash_in_order`, need no list;
    the archive is then read only once.

    Args:
        path: the file.
        is_packed: whether gzip has compressed it.
        progress: called with the number of compressed bytes read while listing.
        listed: whether to list it; without that, ``members`` stays empty.
    """

    def __init__(
        self, path: Path, is_packed: bool, progress: Advance = ignore, *, listed: bool = True
    ) -> None:
        super().__init__(path)
        self.format = "tar.gz" if is_packed else "tar"
        self._is_packed = is_packed
        if listed:
            with self._damage_named():
                self.members = with_problems(self._listed(progress))

    def extract_in_order(
        self,
        choose: Callable[[Member], Path | None],
        progress: Advance = ignore,
        digest: Digest | None = None,
    ) -> Iterator[Extracted]:
        """Write members as they come in one pass over the archive, each with its time.

        Args:
            choose: asked for each member, says which file to write; None leaves the member out.
            progress: called with the number of the archive's own bytes just read.
            digest: is fed with the archive itself; complete when this has ended.

        Yields:
            what was written. Only at the end is it known that the archive is intact.

        Raises:
            ArchiveError: as :meth:`extract`.
        """
        with self._damage_named():
            for member, target, mtime, content in self._pass(choose, progress, digest):
                done = write_member(self.path, member, target, content, ignore)
                # Else a file would look as if it were changed while it was hashed, and be hashed once more.
                with suppress(OSError, OverflowError, ValueError):
                    os.utime(target, (mtime, mtime))
                yield done

    def hash_in_order(
        self, choose: Callable[[Member], T | None], progress: Advance = ignore, digest: Digest | None = None
    ) -> Iterator[tuple[T, int, str]]:
        """Hash members as they come in one pass over the archive, writing nothing.

        Args:
            choose: asked for each member, names it for the caller; None leaves the member out.
            progress: called with the number of the archive's own bytes just read.
            digest: is fed with the archive itself; complete when this has ended.

        Yields:
            what ``choose`` said, the member's size in bytes and its SHA-256 in hex.

        Raises:
            ArchiveError: as :meth:`extract`.
        """
        with self._damage_named():
            for _, chosen, _, content in self._pass(choose, progress, digest):
                sha256 = hashlib.sha256()
                size = 0
                for block in content:
                    sha256.update(block)
                    size += len(block)
                yield chosen, size, sha256.hexdigest()

    def _listed(self, progress: Advance) -> Iterator[Member]:
        if self._is_packed:
            with self._streamed(progress, None) as (tar, _, finish):
                yield from map(self._member, self._infos(tar))
                finish()
            return
        with self.path.open("rb") as file, _Tar.open(fileobj=file, mode="r:", tarinfo=_Info) as tar:
            yield from map(self._member, self._infos(tar))
            file.seek(tar.offset)
            # tarfile takes one that was cut off at a header for complete.
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise self._error("not a valid tar: its end is missing")

    def _infos(self, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        """The headers of all members but folders."""
        count = 0
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep all of them, with their texts
            count += 1
            self._require_few(count)
            if not info.isdir():
                yield info

    def _extract(
        self, wanted: Mapping[str, tuple[Member, Path]], progress: Advance
    ) -> Generator[Extracted, None, None]:
        left = len(wanted)
        with (
            self._damage_named(),
            closing(self._pass(lambda member: wanted.get(member.name), ignore, None)) as chosen,
        ):
            for _, (member, target), _, content in chosen:
                yield write_member(self.path, member, target, content, progress)
                left -= 1
                if not left:
                    return

    def _pass(
        self, choose: Callable[[Member], T | None], progress: Advance, digest: Digest | None
    ) -> Generator[tuple[Member, T, float, Iterator[bytes | memoryview]], None, None]:
        """Each chosen member, what it was chosen for, its time and its content.

        The content must be used before the next member is asked for.
        """
        with self._streamed(progress, digest) as (tar, forward, finish):
            for info in self._infos(tar):
                if (chosen := choose(member := self._member(info))) is None:
                    continue
                if problem := member.problem or naming_problem(member.name):
                    raise self._error(problem, member.name)
                yield member, chosen, info.mtime, _blocks(forward, info)
            finish()
        self._require_unchanged()

    def _member(self, info: tarfile.TarInfo) -> Member:
        return Member(self._safe_name(info.name), info.size, problem=_problem(info))

    @contextmanager
    def _streamed(
        self, progress: Advance, digest: Digest | None
    ) -> Iterator[tuple[tarfile.TarFile, _Forward, Callable[[], None]]]:
        """The tar for one pass from its beginning, its content, and what to call when all members are seen.

        A thread reads the archive and hashes it, a second one decompresses it.
        """
        with ExitStack() as stack:
            observe = digest.update if digest is not None else lambda _: None
            raw = ReadAhead(self.path.open("rb", buffering=0), observe)
            stack.callback(raw.close)
            content = raw
            if self._is_packed:
                content = ReadAhead(gunzip(raw))  # type: ignore[arg-type]
                stack.callback(content.close)
            forward = _Forward(content, raw, progress)
            tar = stack.enter_context(
                _Tar.open(fileobj=forward, mode="r:", tarinfo=_Info)  # type: ignore[call-overload]
            )

            def finish() -> None:
                last = forward.last_read
                while forward.take(BLOCK):
                    pass
                # tarfile takes one that was cut off or damaged at a header for complete.
                if last != bytes(tarfile.BLOCKSIZE):
                    raise self._error(f"not a valid {self.format}: its end is missing")

            yield tar, forward, finish

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        """Turn the errors of a damaged archive into one that names it."""
        try:
            yield
        except _DAMAGE as error:
            if getattr(error, "errno", None) is not None:
                raise
            self._require_unchanged()
            raise self._error(f"not a valid {self.format}: {error}") from error


class _Tar(tarfile.TarFile):
    """Counts the bytes of the headers that stand before members."""

    headers = 0


class _Info(tarfile.TarInfo):
    """A member, before which no more is read into memory than a real one needs."""

    def _proc_member(self, tar: _Tar) -> tarfile.TarInfo | None:
        """Where tarfile wants subclasses to say how a type of member is read."""
        if self.type in _READ_AT_ONCE:
            if self.size > _MOST_HEADER:
                raise tarfile.ReadError(f"a header of {self.size} bytes, which no member needs")
            tar.headers += self.size
            if tar.headers > _MOST_HEADERS:
                raise tarfile.ReadError(f"headers of {tar.headers} bytes, which no archive needs")
        if len(tar.pax_headers) > _MOST_WORDS:  # each member gets a copy
            raise tarfile.ReadError(f"headers with {len(tar.pax_headers)} words, which no archive needs")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]

    def _refuse_sparse(self, *_: object) -> NoReturn:
        """A few bytes may claim to be terabytes of zeros, or a map of millions of parts."""
        raise tarfile.ReadError("it holds a sparse file; pack it again without --sparse")

    # What tarfile calls for each of the four ways to say that a member is sparse.
    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


class _Forward:
    """A stream for tarfile to walk through; it tells, in its reader's thread, how far the archive was read.

    Attributes:
        last_read: what tarfile has read last.
    """

    def __init__(self, stream: ReadAhead, raw: ReadAhead, progress: Advance) -> None:
        self._stream, self._raw, self._progress = stream, raw, progress
        self._at = self._reported = 0
        self.last_read = b""

    def take(self, most: int) -> memoryview:
        """The next bytes, at most so many and perhaps less; none at the end only."""
        block = self._stream.take(most)
        self._at += len(block)
        taken = self._raw.taken
        self._progress(taken - self._reported)
        self._reported = taken
        return block

    def read(self, size: int) -> bytes:
        """So many bytes; less at the end only."""
        self.last_read = bytes(self.take(size))
        while len(self.last_read) < size and (more := self.take(size - len(self.last_read))):
            self.last_read += more
        return self.last_read

    def tell(self) -> int:
        """How many bytes were taken."""
        return self._at

    def seek(self, position: int) -> None:
        """Go forward to this position, or to the end."""
        if position < self._at:
            raise tarfile.StreamError("there is no way back")
        while self._at < position and self.take(min(position - self._at, BLOCK)):
            pass


def _blocks(forward: _Forward, info: tarfile.TarInfo) -> Iterator[bytes | memoryview]:
    """The content of a member that is a file."""
    forward.seek(info.offset_data)
    left = info.size
    while left:
        if not (view := forward.take(min(left, BLOCK))):
            raise tarfile.ReadError("unexpected end of data")
        left -= len(view)
        yield view


def _problem(info: tarfile.TarInfo) -> str | None:
    if info.issym() or info.islnk():
        return "it is a link"
    return None if info.isreg() else "it is a device, not a file"
