"""tar, plain or compressed by gzip."""

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

# Long names and the like stand before a member, and tarfile reads them into memory whatever their size.
_EXTENSION_HEADER_TYPES = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_MAX_HEADER_BYTES = 1 << 16
_MAX_ALL_HEADERS_BYTES = 1 << 24  # altogether; words take much longer to read than files
_MAX_PAX_KEYWORDS = 1000
_READ_AHEAD_BLOCKS = 4

_DAMAGE_ERRORS: tuple[type[Exception], ...] = (
    tarfile.TarError,
    EOFError,
    INFLATE_ERROR,
    OSError,  # of gzip; unlike those of the system it has no number
    ValueError,  # a number of tarfile's that is none, or too large
    RecursionError,  # headers that each stand before another header
)


_REPACK_HINT = "; or pack it again, with GNU tar without --sparse, with bsdtar by --no-read-sparse"
_UNPACK_SPARSE_HINT = CommandHint(
    "unpack it with `tar -xf`", f"FOLDER`{_REPACK_HINT}"
)  # 7-Zip 26 spoils some


class TarArchive(Archive):
    """A tar. A compressed one is read through once to list it, with a bar; this also verifies its checksum.

    Extracting needs no list: members are chosen as they come, in one pass. Unless it is ``listed``,
    ``members`` stays empty.
    """

    def __init__(self, path: Path, is_gzipped: bool, *, list_members: bool = True) -> None:
        super().__init__(path)
        self.read_size = path.stat().st_size  # what is in it may not be known before it is extracted
        self._is_gzipped = is_gzipped
        if list_members:
            with self._translate_errors():
                self.members = self._mark_name_problems(self._list_members())

    def _list_members(self) -> Iterator[Member]:
        if self._is_gzipped:
            with Progress("Listing", self.read_size) as bar, self._open_stream(bar.advance) as (_, tar):
                yield from (member for member, _ in self._iter_members(tar))
        else:
            with (
                self.path.open("rb") as file,
                _LimitedTarFile.open(fileobj=file, mode="r:", tarinfo=_LimitedTarInfo) as tar,
            ):
                yield from (member for member, _ in self._iter_members(tar))

    def _iter_members(self, tar: tarfile.TarFile) -> Iterator[tuple[Member, int]]:
        """Yield all members but folders, with the places of their data: for a hard link, its target's."""
        count, files = 0, dict[str, tuple[int, Member]]()
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep all of them, with their texts
            count += 1
            self._require_member_limit(count)
            if info.isdir():
                continue
            place, member = info.offset_data, self._make_member(info)
            if info.islnk():
                place, target = files.get(normpath(info.linkname), (place, member))
                member = replace(target, name=member.name)
            files[member.name] = place, member
            yield member, place

    def _extract(
        self, choose: TargetChooser, progress: AdvanceCallback
    ) -> Generator[ExtractedFile, None, None]:
        refused = {member.name: member for member in self.members if member.problem}
        links: dict[int, list[tuple[Member, Path]]] = defaultdict(list)
        with self._translate_errors():
            with self._open_stream(progress) as (content, tar):
                for member, place in self._iter_members(tar):
                    if (target := choose(member)) is None:
                        continue
                    self._select_targets(
                        self._mark_name_problems([refused.get(member.name, member)]), lambda _: target
                    )
                    if place < content.tell():
                        links[place].append((member, target))
                        continue
                    blocks = self._read_blocks(content, place, member.size)
                    yield write_member(self.path, member, target, blocks, ignore_progress)
            if links:  # their targets may not be chosen, or already moved
                with self._open_stream(ignore_progress) as (content, _):
                    for place, copies in sorted(links.items()):
                        yield from self._write_copies(
                            copies, self._read_blocks(content, place, copies[0][0].size)
                        )

    def _write_copies(
        self, copies: list[tuple[Member, Path]], blocks: Iterator[memoryview]
    ) -> list[ExtractedFile]:
        """Write several members that have the same content."""
        done = [write_member(self.path, *copies[0], blocks, ignore_progress)]
        for member, target in copies[1:]:
            with done[0].target.open("rb") as file:
                done.append(
                    write_member(
                        self.path, member, target, iter(partial(file.read, BLOCK_BYTES), b""), ignore_progress
                    )
                )
        return done

    def _make_member(self, info: Any) -> Member:
        problem = None if info.isreg() else "it is a device, not a file"
        hint: str = UNPACK_HINT
        if info.issym():
            problem = "it is a symbolic link"
        elif info.islnk():  # which its target takes the place of
            problem, hint = f"it is a hard link to {info.linkname}, which is not before it", GET_AGAIN_HINT
        elif info.is_sparse:
            problem, hint = "it is a sparse file, which mmfw does not read", _UNPACK_SPARSE_HINT
        return Member(self._safe_name(info.name), info.size, problem=problem, hint=hint)

    def _read_blocks(self, content: ReadAheadFile, offset: int, size: int) -> Iterator[memoryview]:
        """Yield the next ``left`` bytes from a place on."""
        content.seek(offset)
        while size:
            if not (block := content.take(min(size, BLOCK_BYTES))):
                raise tarfile.ReadError("unexpected end of data")
            size -= len(block)
            yield block

    @contextmanager
    def _open_stream(self, progress: AdvanceCallback) -> Iterator[tuple[ReadAheadFile, tarfile.TarFile]]:
        """The content for one pass from its beginning to its end, where gzip's checksum is, and the tar."""
        with (
            closing(ReadAheadFile(self.path, self._is_gzipped, progress)) as content,
            _LimitedTarFile.open(fileobj=content, mode="r:", tarinfo=_LimitedTarInfo) as tar,  # type: ignore[call-overload]
        ):
            yield content, tar
            while content.take(BLOCK_BYTES):
                pass

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn the errors of a damaged archive into one that names it."""
        try:
            yield
        except _DAMAGE_ERRORS as error:
            if getattr(error, "errno", None) not in (None, EINVAL):  # EINVAL: too far away to be sought
                raise
            self._require_unchanged()
            kind = "tar.gz" if self._is_gzipped else "tar"
            refusal = self._damaged_error(f"not a valid {kind}: {error}")
            if isinstance(error, _NotTarError):
                refusal.hint = UNPACK_TWICE_HINT
            raise refusal from error


class _NotTarError(tarfile.ReadError):
    """A file does not begin with a tar's header."""


class _LimitedTarFile(tarfile.TarFile):
    """Counts the bytes of the headers that stand before members."""

    header_bytes = 0


class _LimitedTarInfo(tarfile.TarInfo):
    """A member, before which no more is read into memory than a real one needs."""

    is_sparse = False

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> _LimitedTarInfo:
        """The next member; tarfile would take a tar that was cut off or damaged at a header for complete."""
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            if not tar.offset:
                raise _NotTarError("there is no tar in it") from error
            raise tarfile.ReadError(f"its end is missing ({error})") from error

    def _block(self, count: int) -> int:
        """Where tarfile rounds sizes up; Pythons with CVE-2025-8194 go back in the file by negative ones."""
        if count < 0:
            raise tarfile.ReadError(f"a member of {count} bytes")
        return super()._block(count)  # type: ignore[misc, no-any-return]

    def _proc_member(self, tar: _LimitedTarFile) -> tarfile.TarInfo | None:
        """Where tarfile wants subclasses to say how a type of member is read."""
        if self.type in _EXTENSION_HEADER_TYPES:
            if self.size > _MAX_HEADER_BYTES:
                raise tarfile.ReadError(f"a header of {self.size} bytes, which no member needs")
            tar.header_bytes += self.size
            if tar.header_bytes > _MAX_ALL_HEADERS_BYTES:
                raise tarfile.ReadError(f"headers of {tar.header_bytes} bytes, which no archive needs")
        if len(tar.pax_headers) > _MAX_PAX_KEYWORDS:  # each member gets a copy
            raise tarfile.ReadError(f"headers with {len(tar.pax_headers)} words, which no archive needs")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]

    def _proc_sparse(self: Any, tar: Any) -> Any:
        """Mark a sparse file: a few bytes may claim to be terabytes of zeros, or millions of parts."""
        self.is_sparse, has_more = True, self._sparse_structs[1]
        while has_more:
            has_more = tar.fileobj.read(tarfile.BLOCKSIZE)[504:505].strip(b"\0")
        return self._proc_builtin(tar)

    def _mark_sparse(self, member: _LimitedTarInfo, *_: object) -> None:
        member.is_sparse = True

    # What tarfile calls for each of the three ways of pax to say that a member is sparse.
    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _mark_sparse


class ReadAheadFile:
    """The content of a file for tarfile to walk through; a thread reads and decompresses a few blocks ahead.

    Only one thread may read it, and :meth:`close` ends its own. In the reader's, ``progress`` is called with
    the number of the file's own bytes that were read.
    """

    def __init__(self, path: Path, is_gzipped: bool, progress: AdvanceCallback) -> None:
        self._file = path.open("rb", buffering=0)
        self._stream = gzip_ng.open(self._file) if is_gzipped else self._file
        self._progress = progress
        self._pending_bytes = memoryview(b"")
        self._position = self._reported_bytes = 0
        self._thread = ThreadPoolExecutor(1, "mmfw-read")
        self._block_futures = deque(
            self._thread.submit(self._stream.read, BLOCK_BYTES) for _ in range(_READ_AHEAD_BLOCKS)
        )

    def take(self, max_size: int) -> memoryview:
        """The next bytes, not copied: at most so many, and no more than one block; none at the end only.

        Raises whatever reading the file raised, once all bytes before that are taken.
        """
        if not self._pending_bytes:
            # The end, or what was raised, stays in front, so that it is there again for the next call.
            if block := wait_for_result(self._block_futures[0]):
                self._block_futures.popleft()
                self._block_futures.append(self._thread.submit(self._stream.read, BLOCK_BYTES))
                self._pending_bytes = memoryview(block)
            read = self._file.tell()
            self._progress(read - self._reported_bytes)
            self._reported_bytes = read
        taken, self._pending_bytes = self._pending_bytes[:max_size], self._pending_bytes[max_size:]
        self._position += len(taken)
        return taken

    def read(self, size: int) -> bytes:
        """So many bytes; less at the end only."""
        data = bytes(self.take(size))
        while len(data) < size and (more := self.take(size - len(data))):
            data += more
        return data

    def tell(self) -> int:
        """Return the number of bytes that were taken."""
        return self._position

    def seek(self, position: int) -> None:
        """Go forward to this position, or to the end."""
        while self._position < position and self.take(min(position - self._position, BLOCK_BYTES)):
            pass

    def close(self) -> None:
        """End the thread and close the file."""
        self._thread.shutdown(cancel_futures=True)
        self._file.close()
