"""Archives as other programs write them, and functions that unpack all files of an archive."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import py7zr
from Cryptodome.Cipher import AES
from Cryptodome.Util import Counter

from mmf_win.archives import open_archive
from mmf_win.archives.base import TargetChooser
from tests.worlds.memes import Files, dataset_files, read_tree, tar_gz

COPY_FILTERS = [{"id": py7zr.FILTER_COPY}]
"""Filters for :func:`write_7z` that compress nothing."""

DATASET_FILES: Files = {**dataset_files(), "hateful_memes/empty": b""}


def choose_all(folder: Path) -> TargetChooser:
    """Return a chooser that extracts all members to ``folder``."""
    return lambda member: folder / member.name


def choose_members(targets: Mapping[str, Path]) -> TargetChooser:
    """Return a chooser that extracts the members with these names to these targets."""
    return lambda member: targets.get(member.name)


def unpack_all(path: Path, out: Path, password: str | None = None) -> Files:
    """Unpack an archive to ``out`` and return all its files."""
    archive = open_archive(path, None if password is None else lambda: password)
    archive.check_password()
    extracted = list(archive.extract(choose_all(out)))
    assert len(extracted) == len(read_tree(out))
    return read_tree(out)


def write_7z(
    path: Path, files: Files, password: str | None = None, *, hide_names: bool = False, filters: Any = None
) -> Path:
    """Write a solid 7z with these filters of py7zr, by default those that py7zr chooses."""
    options = {"filters": filters, "password": password, "header_encryption": hide_names}
    with py7zr.SevenZipFile(path, "w", **options) as archive:
        for name, content in files.items():
            archive.writestr(content, name)
    return path


def write_tar(path: Path, files: Files, compression: str = "") -> Path:
    """Write a tar, compressed with gzip if ``compression`` is not empty."""
    uncompressed = gzip.decompress(tar_gz(files))
    path.write_bytes(gzip.compress(uncompressed) if compression else uncompressed)
    return path


def write_aes_zip(path: Path, files: Files, password: str, *, version: int, strength: int = 3) -> Path:
    """Write an AES-encrypted zip of version AE-1, which has checksums, or AE-2.

    The strengths 1, 2 and 3 are 128, 192 and 256 bits.
    """
    body, directory, random = b"", b"", Random(1)
    for name, content in files.items():
        data = encrypt_aes_member(content, password.encode(), strength, random)
        field = struct.pack("<HHH2sBH", 0x9901, 7, version, b"AE", strength, 8)
        crc = zlib.crc32(content) if version == 1 else 0
        sizes = struct.pack("<3I2H", crc, len(data), len(content), len(name.encode()), len(field))
        header = struct.pack("<5H", 51, 1 | 1 << 11, 99, 0, 1 << 5 | 1) + sizes
        rest = struct.pack("<3H2I", 0, 0, 0, 0o100644 << 16, len(body))
        directory += b"PK\x01\x02" + struct.pack("<H", 3 << 8 | 51) + header + rest + name.encode() + field
        body += b"PK\x03\x04" + header + name.encode() + field + data
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(files), len(files), len(directory), len(body), 0)
    path.write_bytes(body + directory + end)
    return path


def encrypt_aes_member(content: bytes, password: bytes, strength: int, random: Random) -> bytes:
    """Return the data of a member: salt, check bytes, encrypted deflated content and authentication code."""
    deflate = zlib.compressobj(wbits=-15)
    packed = deflate.compress(content) + deflate.flush()
    size = 8 + 8 * strength
    salt = random.randbytes(size // 2)
    keys = hashlib.pbkdf2_hmac("sha1", password, salt, 1000, 2 * size + 2)
    counter = Counter.new(128, initial_value=1, little_endian=True)
    data: bytes = AES.new(keys[:size], AES.MODE_CTR, counter=counter).encrypt(packed)
    return salt + keys[2 * size :] + data + hmac.digest(keys[size : 2 * size], data, "sha1")[:10]
