"""Deflate, gzip and CRC-32 by the fastest library that is installed.

zlib-ng unpacks what is mostly stored, as images in a zip are, three times as fast as the zlib that most
Pythons are built with, and has the checksum six times as fast; docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import IO, Any

_library: Any
try:
    from zlib_ng import zlib_ng as _library
except ImportError:
    _library = zlib

_MOST = 1 << 20
_PIECE = 1 << 17

LIBRARY: str = _library.__name__.rpartition(".")[2]
"""The library that is used: ``zlib_ng`` or ``zlib``."""


class Inflater:
    """Unpacks one raw deflate stream, never more than 1 MiB at once."""

    error: tuple[type[Exception], ...] = (_library.error, zlib.error)
    """What is raised for damaged data."""

    def __init__(self) -> None:
        self._stream = _library.decompressobj(wbits=-zlib.MAX_WBITS)

    def feed(self, packed: bytes | memoryview) -> Iterator[bytes]:
        """What the next piece of the stream unpacks to; nothing once the stream has ended."""
        stream = self._stream
        while len(packed) and not stream.eof:
            yield stream.decompress(packed, _MOST)
            packed = stream.unconsumed_tail

    def flush(self) -> bytes:
        """What is left at the end."""
        last: bytes = self._stream.flush()
        return last


class Gunzip(io.RawIOBase):
    """What a gzip file unpacks to, its checksums verified: one stream, or several in a row.

    Unlike the module ``gzip``, it gives all that comes before the damage when a file is damaged.

    Args:
        stream: the gzip file; closed by this.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._packed = b""
        self._inflater: Any = _gzip_inflater()

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """At most ``size`` bytes, and no more than 1 MiB; nothing at the end only.

        Raises:
            EOFError: the file is cut off.
            Exception: one of ``Inflater.error``: it is damaged.
        """
        most = _MOST if size is None or size < 0 else min(size, _MOST)
        while True:
            self._packed = self._packed or self._stream.read(_PIECE)
            at_end = not self._packed
            if self._inflater is None:
                self._packed = self._packed.lstrip(b"\0")  # some tools fill the last block of a tape
                if self._packed:
                    self._inflater = _gzip_inflater()
                elif at_end:
                    return b""
                else:
                    continue
            content: bytes = self._inflater.decompress(self._packed, most)
            if self._inflater.eof:
                self._packed, self._inflater = self._inflater.unused_data, None
            else:
                self._packed = self._inflater.unconsumed_tail
            if content:
                return content
            if at_end and self._inflater is not None:
                raise EOFError("it is cut off")

    def close(self) -> None:
        """Close the gzip file, too."""
        self._stream.close()
        super().close()


def _gzip_inflater() -> Any:
    return _library.decompressobj(wbits=16 + zlib.MAX_WBITS)


def crc32(data: bytes | memoryview, value: int = 0) -> int:
    """The CRC-32 of ``data`` after data whose CRC-32 was ``value``."""
    result: int = _library.crc32(data, value)
    return result
