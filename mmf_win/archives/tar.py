"""tar, plain or compressed by gzip, bzip2 or xz."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mmf_win.archives.base import BLOCK, Advance, Archive, Extracted, Member, ignore, with_problems

MAGIC = {"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ\0"}
"""Kind of compression → the first bytes of such a file."""

_DAMAGE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


class TarArchive(Archive):
    """A tar. A compressed one is read through once to list it, which also verifies its checksum.

    Args:
        path: the file.
        compression: a key of :data:`MAGIC`; None for a plain tar.
        progress: called with the number of compressed bytes read while listing.
    """

    def __init__(self, path: Path, compression: str | None, progress: Advance = ignore) -> None:
        super().__init__(path)
        self.format = f"tar.{compression}" if compression else "tar"
        self._compression = compression
        with self._opened(progress) as tar:
            self.members = with_problems(
                Member(self._safe_name(info.name), info.size, problem=_problem(info))
                for info in tar
                if not info.isdir()
            )
            if compression is None:
                self._require_end(tar.offset)

    def _require_end(self, offset: int) -> None:
        """A tar ends with blocks of zeros; ``tarfile`` takes one that was cut off at a header for whole."""
        with self.path.open("rb") as file:
            file.seek(offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise self._error("not a whole tar: its end is missing")

    def _extract(
        self, wanted: Mapping[str, tuple[Member, Path]], progress: Advance
    ) -> Generator[Extracted, None, None]:
        left = len(wanted)
        with self._opened(ignore) as tar:
            for info in tar:
                if not left:
                    return
                if info.isdir() or (name := self._safe_name(info.name)) not in wanted:
                    continue
                member, target = wanted[name]
                content = tar.extractfile(info)
                assert content is not None  # links and devices were refused by the base class
                yield self._write(member, target, _blocks(content), progress)
                left -= 1

    @contextmanager
    def _opened(self, progress: Advance) -> Iterator[tarfile.TarFile]:
        """The tar for one pass from its beginning; what is damaged becomes an error of ours."""
        with _MeteredFile(self.path, progress) as raw:
            try:
                if self._compression is None:
                    with tarfile.open(fileobj=raw, mode="r:") as tar:
                        yield tar
                else:
                    stream = _decompressed(self._compression, raw)
                    with tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK) as tar:
                        yield tar
            except (*_DAMAGE, OSError) as error:
                # For bz2, damage is an OSError; unlike those of the system it has no number.
                if getattr(error, "errno", None) is not None:
                    raise
                raise self._error(f"not a whole {self.format}: {error}") from error


class _MeteredFile(io.FileIO):
    """A file that reports what is read from it."""

    def __init__(self, path: Path, progress: Advance) -> None:
        super().__init__(path)
        self._progress = progress

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self._progress(len(data))
        return data


def _decompressed(compression: str, raw: IO[bytes]) -> IO[bytes]:
    if compression == "gz":
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    return bz2.BZ2File(raw) if compression == "bz2" else lzma.LZMAFile(raw)


def _blocks(content: IO[bytes]) -> Iterator[bytes]:
    while block := content.read(BLOCK):
        yield block


def _problem(info: tarfile.TarInfo) -> str | None:
    if info.issym() or info.islnk():
        return "it is a link"
    return None if info.isreg() else "it is a device, not a file"
