"""tar archives, plain or compressed with gzip."""

from __future__ import annotations

import tarfile
from collections import defaultdict, deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from errno import EINVAL
from functools import partial
from pathlib import Path
from posixpath import normpath
from typing import Any

from zlib_ng import gzip_ng

from mmf_win.archives.base import (
    BLOCK_BYTES,
    GET_AGAIN_HINT,
    INFLATE_ERROR,
    Archive,
    ExtractedFile,
    Member,
    TargetChooser,
    write_member,
)
from mmf_win.console import Progress
from mmf_win.sniffing import UNPACK_HINT, UNPACK_TWICE_HINT, CommandHint
from mmf_win.threads import AdvanceCallback, ignore_progress, wait_for_result

# Headers with long names and similar data precede a member; tarfile reads them into memory without a limit.
_EXTENSION_HEADER_TYPES = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_MAX_HEADER_BYTES = 1 << 16
_MAX_ALL_HEADERS_BYTES = 1 << 24  # in total; keywords take much longer to read than files
_MAX_PAX_KEYWORDS = 1000
_READ_AHEAD_BLOCKS = 4

_DAMAGE_ERRORS: tuple[type[Exception], ...] = (
    tarfile.TarError,
    EOFError,
    INFLATE_ERROR,
    OSError,  # of gzip; unlike errors of the system it has no errno
    ValueError,  # a number that tarfile cannot parse, or that is too large
    RecursionError,  # a long chain of headers that each precede another header
)


_REPACK_HINT = "; or create the archive again without --sparse (GNU tar) or with --no-read-sparse (bsdtar)"
# Not with 7-Zip: version 26 damages some sparse files.
_UNPACK_SPARSE_HINT = CommandHint("unpack it with `tar -xf`", f"FOLDER`{_REPACK_HINT}")


class TarArchive(Archive):
    """A tar file. Listing a compressed one reads it to its end and verifies its checksum.

    Extraction needs no list: members are chosen in one pass. Without ``list_members``, ``members`` is empty.
    """

    def __init__(self, path: Path, is_gzipped: bool, *, list_members: bool = True) -> None:
        super().__init__(path)
        self.read_size = path.stat().st_size  # the size of the members may be unknown before extraction
        self._is_gzipped = is_gzipped
        if list_members:
            with self._translate_errors():
                self.members = self._mark_name_problems(self._list_members())

    def _list_members(self) -> Iterator[Member]:
        if self._is_gzipped:
            with Progress("Listing", self.read_size) as bar, self._open_stream(bar.advance) as (_, tar):
                yield from (member for member, _ in self._iter_members(tar))
        else:
            with self.path.open("rb") as file, _LimitedTarFile.open(fileobj=file, mode="r:") as tar:
                yield from (member for member, _ in self._iter_members(tar))

    def _iter_members(self, tar: tarfile.TarFile) -> Iterator[tuple[Member, int]]:
        """Yield all members except folders with the offset of their data; for a hard link, its target's."""
        count, files = 0, dict[str, tuple[int, Member]]()
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep all of them in memory
            count += 1
            self._require_member_limit(count)
            if info.isdir():
                continue
            offset, member = info.offset_data, self._make_member(info)
            if info.islnk():
                offset, target = files.get(normpath(info.linkname), (offset, member))
                member = replace(target, name=member.name)
            files[member.name] = offset, member
            yield member, offset

    def _extract(self, choose: TargetChooser, progress: AdvanceCallback) -> Generator[ExtractedFile, None, None]:
        problem_members = {member.name: member for member in self.members if member.problem}
        links: dict[int, list[tuple[Member, Path]]] = defaultdict(list)
        with self._translate_errors():
            with self._open_stream(progress) as (content, tar):
                for member, offset in self._iter_members(tar):
                    if (target := choose(member)) is None:
                        continue
                    members = self._mark_name_problems([problem_members.get(member.name, member)])
                    self._select_targets(members, lambda _: target)
                    if offset < content.tell():
                        links[offset].append((member, target))
                        continue
                    blocks = self._read_blocks(content, offset, member.size)
                    yield write_member(self.path, member, target, blocks, ignore_progress)
            if links:  # their targets may not be chosen, or may already be moved
                with self._open_stream(ignore_progress) as (content, _):
                    for offset, copies in sorted(links.items()):
                        yield from self._write_copies(copies, self._read_blocks(content, offset, copies[0][0].size))

    def _write_copies(self, copies: list[tuple[Member, Path]], blocks: Iterator[memoryview]) -> list[ExtractedFile]:
        """Write several members with the same content."""
        written = [write_member(self.path, *copies[0], blocks, ignore_progress)]
        for member, target in copies[1:]:
            with written[0].target.open("rb") as file:
                content = iter(partial(file.read, BLOCK_BYTES), b"")
                written.append(write_member(self.path, member, target, content, ignore_progress))
        return written

    def _make_member(self, info: Any) -> Member:
        problem = None if info.isreg() else "devices are not supported"
        hint: str = UNPACK_HINT
        if info.issym():
            problem = "symbolic links are not supported"
        elif info.islnk():  # a valid hard link is replaced by its target later
            problem, hint = f"hard link to {info.linkname}, which is not an earlier member", GET_AGAIN_HINT
        elif info.is_sparse:
            problem, hint = "sparse files are not supported", _UNPACK_SPARSE_HINT
        return Member(self._safe_name(info.name), info.size, problem=problem, hint=hint)

    def _read_blocks(self, content: ReadAheadFile, offset: int, size: int) -> Iterator[memoryview]:
        """Yield ``size`` bytes from an offset on."""
        content.seek(offset)
        while size:
            if not (block := content.take(min(size, BLOCK_BYTES))):
                raise tarfile.ReadError("unexpected end of data")
            size -= len(block)
            yield block

    @contextmanager
    def _open_stream(self, progress: AdvanceCallback) -> Iterator[tuple[ReadAheadFile, tarfile.TarFile]]:
        """Open the tar for one pass; on exit, read to the end, where gzip's checksum is."""
        with (
            closing(ReadAheadFile(self.path, self._is_gzipped, progress)) as content,
            _LimitedTarFile.open(fileobj=content, mode="r:") as tar,  # type: ignore[call-overload]
        ):
            yield content, tar
            while content.take(BLOCK_BYTES):
                pass

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Convert the exceptions for damaged data to an ArchiveError that names the file."""
        try:
            yield
        except _DAMAGE_ERRORS as error:
            if getattr(error, "errno", None) not in (None, EINVAL):  # EINVAL: offset too large to seek to
                raise
            self._require_unchanged()
            kind = "tar.gz" if self._is_gzipped else "tar"
            damage = self._damaged_error(f"not a valid {kind}: {error}")
            if isinstance(error, _NotTarError):
                damage.hint = UNPACK_TWICE_HINT
            raise damage from error


class _NotTarError(tarfile.ReadError):
    """The file does not begin with a tar header."""


class _LimitedTarInfo(tarfile.TarInfo):
    """TarInfo that limits how many header bytes are read into memory before a member."""

    is_sparse = False

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> _LimitedTarInfo:
        """Return the next member; tarfile alone treats a tar truncated or damaged at a header as complete."""
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            if not tar.offset:
                raise _NotTarError("no tar header") from error
            raise tarfile.ReadError(f"end of the archive is missing ({error})") from error

    def _block(self, count: int) -> int:
        """Round a size up to blocks; reject a negative one, which seeks back if CVE-2025-8194 is unfixed."""
        if count < 0:
            raise tarfile.ReadError(f"member size of {count} bytes")
        return super()._block(count)  # type: ignore[misc, no-any-return]

    def _proc_member(self, tar: _LimitedTarFile) -> tarfile.TarInfo | None:
        """Check the limits before tarfile reads a member; subclasses are meant to override this method."""
        if self.type in _EXTENSION_HEADER_TYPES:
            if self.size > _MAX_HEADER_BYTES:
                raise tarfile.ReadError(f"extension header too large ({self.size} bytes)")
            tar.header_bytes += self.size
            if tar.header_bytes > _MAX_ALL_HEADERS_BYTES:
                raise tarfile.ReadError(f"extension headers too large ({tar.header_bytes} bytes in total)")
        if len(tar.pax_headers) > _MAX_PAX_KEYWORDS:  # tarfile copies them for each member
            raise tarfile.ReadError(f"too many entries in pax headers ({len(tar.pax_headers)})")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]

    def _proc_sparse(self: Any, tar: Any) -> Any:
        """Mark a sparse file, whose few bytes may declare terabytes of zeros or millions of parts."""
        self.is_sparse, has_more = True, self._sparse_structs[1]
        while has_more:
            has_more = tar.fileobj.read(tarfile.BLOCKSIZE)[504:505].strip(b"\0")
        return self._proc_builtin(tar)

    def _mark_sparse(self, member: _LimitedTarInfo, *_: object) -> None:
        member.is_sparse = True

    # tarfile calls one of these for each of the three pax formats of sparse members.
    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _mark_sparse


class _LimitedTarFile(tarfile.TarFile):
    """TarFile that counts the bytes of the headers that precede members."""

    tarinfo = _LimitedTarInfo
    header_bytes = 0


class ReadAheadFile:
    """File object for tarfile whose background thread reads and decompresses a few blocks ahead.

    Only one thread may read it. ``progress`` is called in that thread with the number of bytes read from the
    file (compressed bytes, if it is compressed). :meth:`close` ends the background thread.
    """

    def __init__(self, path: Path, is_gzipped: bool, progress: AdvanceCallback) -> None:
        self._file = path.open("rb", buffering=0)
        self._stream = gzip_ng.open(self._file) if is_gzipped else self._file
        self._progress = progress
        self._pending_bytes = memoryview(b"")
        self._position = self._reported_bytes = 0
        self._thread = ThreadPoolExecutor(1, "mmfw-read")
        self._futures = deque(self._thread.submit(self._stream.read, BLOCK_BYTES) for _ in range(_READ_AHEAD_BLOCKS))

    def take(self, max_size: int) -> memoryview:
        """Return the next bytes without copying them.

        An exception of the background thread is raised once all bytes before it are returned.

        Args:
            max_size: Maximum number of bytes.

        Returns:
            At most ``max_size`` bytes and at most one block; empty only at the end.
        """
        if not self._pending_bytes:
            # The end or an exception stays first in the queue, so that the next call gets it again.
            if block := wait_for_result(self._futures[0]):
                self._futures.popleft()
                self._futures.append(self._thread.submit(self._stream.read, BLOCK_BYTES))
                self._pending_bytes = memoryview(block)
            read_bytes = self._file.tell()
            self._progress(read_bytes - self._reported_bytes)
            self._reported_bytes = read_bytes
        chunk, self._pending_bytes = self._pending_bytes[:max_size], self._pending_bytes[max_size:]
        self._position += len(chunk)
        return chunk

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, or fewer at the end of the file."""
        data = bytes(self.take(size))
        while len(data) < size and (more := self.take(size - len(data))):
            data += more
        return data

    def tell(self) -> int:
        """Return the number of bytes that were read."""
        return self._position

    def seek(self, position: int) -> None:
        """Skip forward to a position, or to the end."""
        while self._position < position and self.take(min(position - self._position, BLOCK_BYTES)):
            pass

    def close(self) -> None:
        """End the thread and close the file."""
        self._thread.shutdown(cancel_futures=True)
        self._file.close()
