"""The traditional PKZIP encryption ("ZipCrypto") and a writer of zip files that use it.

Source: PKWARE's APPNOTE.TXT, section 6.1 (https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT). The
encryption is weak; it is implemented because the Hateful Memes archive uses it.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from mmf_win.files import atomic_replace

#: Size of the random header before the encrypted data; its last byte allows checking the password.
ENCRYPTION_HEADER_SIZE = 12

#: State of the cipher: three 32-bit numbers.
Keys = tuple[int, int, int]

# CRC-32 table: register value after one byte, starting from zero. zlib inverts the register before and after.
_CRC_TABLE = tuple(zlib.crc32(bytes([value]), 0xFFFFFFFF) ^ 0xFFFFFFFF for value in range(256))


class Cipher:
    """Slow pure Python implementation of the cipher; an instance encrypts one member from its start."""

    def __init__(self, password: bytes = b"") -> None:
        self.keys: Keys = (0x12345678, 0x23456789, 0x34567890)
        self.encrypt_bytes(password)

    def encrypt_bytes(self, data: bytes) -> bytes:
        """Encrypt the next bytes of the member."""
        key0, key1, key2 = self.keys
        encrypted = bytearray()
        for byte in data:
            k = key2 & 0xFFFF | 2
            encrypted.append(byte ^ (k * (k ^ 1) >> 8 & 0xFF))
            key0 = key0 >> 8 ^ _CRC_TABLE[(key0 ^ byte) & 0xFF]
            key1 = ((key1 + (key0 & 0xFF)) * 134775813 + 1) & 0xFFFFFFFF
            key2 = key2 >> 8 ^ _CRC_TABLE[(key2 ^ key1 >> 24) & 0xFF]
        self.keys = key0, key1, key2
        return bytes(encrypted)


def load_extension() -> ModuleType | None:
    """Return the C extension, or None if it was not built."""
    try:
        return import_module("mmf_win.archives._zipcrypto")
    except ImportError:
        return None


def write_encrypted_zip(path: Path, files: Iterable[tuple[str, bytes]], password: str) -> None:
    """Write a zip with deflated and encrypted members, like ``zip -P``; an incomplete file is never left.

    Args:
        path: Target file.
        files: Pairs of name (``/`` as separator) and content.
        password: Encoded as UTF-8.
    """
    secret = password.encode()
    with atomic_replace(path) as temporary, zipfile.ZipFile(temporary, "w") as zip_file:
        archive: Any = zip_file  # zipfile cannot encrypt, but it writes the headers and the directory
        for name, content in files:
            info = zipfile.ZipInfo(name)  # dated 1980-01-01, so that the file does not depend on the clock
            info.compress_type, info.flag_bits = zipfile.ZIP_DEFLATED, 1  # encrypted
            # Marked as created on Unix, with a mode: unzip ignores the UTF-8 flag of names created on DOS.
            info.create_system, info.external_attr = 3, 0o100644 << 16
            info.CRC, info.file_size = zlib.crc32(content), len(content)
            deflate = zlib.compressobj(wbits=-15)
            header = os.urandom(ENCRYPTION_HEADER_SIZE - 1) + bytes([info.CRC >> 24])  # a decryptor compares this byte
            data = Cipher(secret).encrypt_bytes(header + deflate.compress(content) + deflate.flush())
            info.compress_size, info.header_offset = len(data), archive.fp.tell()
            archive.fp.write(info.FileHeader() + data)
            archive.filelist.append(info)
        archive.start_dir, archive._didModify = archive.fp.tell(), True
