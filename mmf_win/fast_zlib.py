"""CRC-32, deflate and gzip by the fastest library that is installed.

zlib-ng unpacks what is mostly stored, as images in a zip are, three times as fast as the zlib that most
Pythons are built with, and makes checksums six times as fast; docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

_gzip: Any = gzip
_library: Any = zlib
with suppress(ImportError):
    from zlib_ng import gzip_ng, zlib_ng

    _gzip, _library = gzip_ng, zlib_ng

_MOST = 1 << 20


def crc32(data: bytes | memoryview, value: int = 0) -> int:
    """The CRC-32 of ``data`` after data whose CRC-32 was ``value``."""
    result: int = _library.crc32(data, value)
    return result


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


def gunzip(stream: IO[bytes]) -> IO[bytes]:
    """What a gzip file unpacks to; it raises EOFError, OSError or one of ``Inflater.error`` for damage."""
    content: IO[bytes] = _gzip.open(stream)
    return content
