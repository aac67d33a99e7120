"""CRC-32 by the fastest library that is installed: zlib-ng has it six times as fast as most Pythons."""

from __future__ import annotations

from typing import Any

_crc32: Any
try:
    from zlib_ng.zlib_ng import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32


def crc32(data: bytes | memoryview, value: int = 0) -> int:
    """The CRC-32 of ``data`` after data whose CRC-32 was ``value``."""
    result: int = _crc32(data, value)
    return result
