"""tar, plain or compressed by gzip, bzip2 or xz."""

from __future__ import annotations

import bz2
import hashlib
import lzma
import os
import tarfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TypeVar

from mmf_win.archives.base import BLOCK, Advance, Archive, Extracted, Member, ignore, with_problems
from mmf_win.archives.hashing import Digest
from mmf_win.archives.inflate import Gunzip, Inflater
from mmf_win.archives.names import naming_problem
from mmf_win.archives.readahead import ReadAhead

MAGIC = {"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ\0"}
"""Kind of compression → the first bytes of such a file."""

_OPENERS: dict[str, Callable[[IO[bytes]], IO[bytes] | Gunzip]] = {
    "gz": Gunzip,
    "bz2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
}
T = TypeVar("T")

_GZIP_LEAST = 18  # a header of ten bytes and eight at the end
# For bz2, damage is an OSError; unlike those of the system it has no number.
_DAMAGE: tuple[type[Exception], ...] = (
    tarfile.TarError,
    EOFError,
    *Inflater.error,
    lzma.LZMAError,
    OSError,
)


class TarArchive(Archive):
    """A tar. A compressed one is read through once to list it, which also verifies its checksum.

    Whoever takes members as they come, by :meth:`extract_in_order` or :meth:`hash_in_order`, does not need
    the list; the archive is then read only once.

    Args:
        path: the file.
        compression: a key of :data:`MAGIC`; None for a plain tar.
        progress: called with the number of compressed bytes read while listing.
        listed: whether to list it; without that, ``members`` stays empty.
    """

    def __init__(
        self, path: Path, compression: str | None, progress: Advance = ignore, *, listed: bool = True
    ) -> None:
        super().__init__(path)
        self.format = f"tar.{compression}" if compression else "tar"
        self._compression = compression
        if listed:
            with self._damage_told():
                self.members = with_problems(self._listed(progress))

    def extract_in_order(
        self,
        choose: Callable[[Member], Path | None],
        progress: Advance = ignore,
        digest: Digest | None = None,
    ) -> Iterator[Extracted]:
        """Write members as they come in one pass over the archive, each with its SHA-256 and its time.

        Args:
            choose: asked for each member, says which file to write; None leaves the member out.
            progress: called with the number of the archive's own bytes just read.
            digest: is fed with the archive itself; complete when this has ended.

        Yields:
            what was written. That the archive as a whole is undamaged is known only at the end.

        Raises:
            ArchiveError: as :meth:`extract`.
        """
        with self._damage_told():
            for member, target, mtime, content in self._pass(choose, progress, digest):
                sha256 = hashlib.sha256()
                done = self._write(member, target, _observed(content, sha256), ignore)
                # Else a file would look as if it were changed while it was hashed, and be hashed once more.
                with suppress(OSError, OverflowError):
                    os.utime(target, (mtime, mtime))
                yield replace(done, sha256=sha256.hexdigest())

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
        with self._damage_told():
            for _, chosen, _, content in self._pass(choose, progress, digest):
                sha256 = hashlib.sha256()
                size = sum(len(block) for block in _observed(content, sha256))
                yield chosen, size, sha256.hexdigest()

    def least_size(self) -> int:
        """Bytes that its content takes at least, which is all that is known before it is read."""
        size = self.path.stat().st_size
        if self._compression != "gz" or size < _GZIP_LEAST:
            return size
        with self.path.open("rb") as file:
            file.seek(-4, os.SEEK_END)
            return max(
                size, int.from_bytes(file.read(), "little")
            )  # of 14 GB it says 2: it counts in 32 bits

    def _listed(self, progress: Advance) -> Iterator[Member]:
        if self._compression is not None:
            with self._streamed(progress, None) as (tar, finish):
                yield from (self._member(info) for info in tar if not info.isdir())
                finish()
            return
        with self.path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            yield from (self._member(info) for info in tar if not info.isdir())
            file.seek(tar.offset)
            # tarfile takes one that was cut off at a header for whole.
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise self._error("not a whole tar: its end is missing")

    def _extract(
        self, wanted: Mapping[str, tuple[Member, Path]], progress: Advance
    ) -> Generator[Extracted, None, None]:
        left = len(wanted)
        with self._damage_told(), self._streamed(ignore, None) as (tar, _):
            for info in tar:
                if not left:
                    return
                if info.isdir() or (name := self._safe_name(info.name)) not in wanted:
                    continue
                member, target = wanted[name]
                yield self._write(member, target, _blocks(tar, info), progress)
                left -= 1

    def _pass(
        self, choose: Callable[[Member], T | None], progress: Advance, digest: Digest | None
    ) -> Iterator[tuple[Member, T, float, Iterator[bytes]]]:
        """Each chosen member, what it was chosen for, its time and its content.

        The content must be used before the next member is asked for.
        """
        with self._streamed(progress, digest) as (tar, finish):
            for info in tar:
                if info.isdir() or (chosen := choose(member := self._member(info))) is None:
                    continue
                if problem := member.problem or naming_problem(member.name):
                    raise self._error(problem, member.name)
                yield member, chosen, info.mtime, _blocks(tar, info)
            finish()
        self._require_unchanged()

    def _member(self, info: tarfile.TarInfo) -> Member:
        return Member(self._safe_name(info.name), info.size, problem=_problem(info))

    @contextmanager
    def _streamed(
        self, progress: Advance, digest: Digest | None
    ) -> Iterator[tuple[tarfile.TarFile, Callable[[], None]]]:
        """The tar for one pass from its beginning, and what to call when all members are seen.

        A thread reads the archive and hashes it, a second one decompresses it.
        """
        with ExitStack() as stack:
            observe = digest.update if digest is not None else lambda _: None
            raw = ReadAhead(self.path.open("rb", buffering=0), observe)
            stack.callback(raw.close)
            content = raw
            if self._compression is not None:
                content = ReadAhead(_OPENERS[self._compression](raw))  # type: ignore[arg-type]
                stack.callback(content.close)
            metered = _Metered(content, raw, progress)
            tar = stack.enter_context(tarfile.open(fileobj=metered, mode="r|", bufsize=BLOCK))  # type: ignore[call-overload]

            def finish() -> None:
                while metered.read(BLOCK):
                    pass
                if content.taken <= tar.offset:
                    raise self._error(f"not a whole {self.format}: its end is missing")

            yield tar, finish

    @contextmanager
    def _damage_told(self) -> Iterator[None]:
        """What is damaged becomes an error of ours."""
        try:
            yield
        except _DAMAGE as error:
            if getattr(error, "errno", None) is not None:
                raise
            self._require_unchanged()
            raise self._error(f"not a whole {self.format}: {error}") from error


class _Metered:
    """A stream that tells, in the thread of its reader, how far the archive below it was read."""

    def __init__(self, stream: ReadAhead, raw: ReadAhead, progress: Advance) -> None:
        self._stream, self._raw, self._progress = stream, raw, progress
        self._told = 0

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        taken = self._raw.taken
        self._progress(taken - self._told)
        self._told = taken
        return data


def _observed(blocks: Iterator[bytes], digest: Digest) -> Iterator[bytes]:
    for block in blocks:
        digest.update(block)
        yield block


def _blocks(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Iterator[bytes]:
    content = tar.extractfile(info)
    assert content is not None  # links and devices are refused before
    while block := content.read(BLOCK):
        yield block


def _problem(info: tarfile.TarInfo) -> str | None:
    if info.issym() or info.islnk():
        return "it is a link"
    return None if info.isreg() else "it is a device, not a file"
