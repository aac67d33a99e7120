"""Zips with WinZip's AES encryption, written by other means than those by which mmfw reads them."""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from pathlib import Path
from random import Random

from Cryptodome.Cipher import AES
from Cryptodome.Util import Counter

from tests.worlds.memes import Files

_METHOD, _DEFLATED = 99, 8


def write_aes_zip(path: Path, files: Files, password: str, *, version: int, strength: int = 3) -> Path:
    """A zip of version AE-1, which keeps checksums, or AE-2; strengths 1, 2, 3 are 128, 192, 256 bits."""
    body, directory, random = b"", b"", Random(1)
    for name, content in files.items():
        data = encrypted(content, password.encode(), strength, random)
        field = struct.pack("<HHH2sBH", 0x9901, 7, version, b"AE", strength, _DEFLATED)
        crc = zlib.crc32(content) if version == 1 else 0
        sizes = struct.pack("<3I2H", crc, len(data), len(content), len(name.encode()), len(field))
        header = struct.pack("<5H", 51, 1 | 1 << 11, _METHOD, 0, 1 << 5 | 1) + sizes
        rest = struct.pack("<3H2I", 0, 0, 0, 0o100644 << 16, len(body))
        directory += b"PK\x01\x02" + struct.pack("<H", 3 << 8 | 51) + header + rest + name.encode() + field
        body += b"PK\x03\x04" + header + name.encode() + field + data
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(files), len(files), len(directory), len(body), 0)
    path.write_bytes(body + directory + end)
    return path


def encrypted(content: bytes, password: bytes, strength: int, random: Random) -> bytes:
    """A member's data: salt, check bytes, the deflated content encrypted, and its authentication code."""
    deflate = zlib.compressobj(wbits=-15)
    packed = deflate.compress(content) + deflate.flush()
    size = 8 + 8 * strength
    salt = random.randbytes(size // 2)
    keys = hashlib.pbkdf2_hmac("sha1", password, salt, 1000, 2 * size + 2)
    counter = Counter.new(128, initial_value=1, little_endian=True)
    data: bytes = AES.new(keys[:size], AES.MODE_CTR, counter=counter).encrypt(packed)
    return salt + keys[2 * size :] + data + hmac.digest(keys[size : 2 * size], data, "sha1")[:10]
