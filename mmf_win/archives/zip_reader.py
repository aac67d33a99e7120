"""The members of a zip, read one at a time."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mmf_win.archives.base import BLOCK, Member, damaged
from mmf_win.archives.inflate import Inflater
from mmf_win.archives.winzip_aes import MAC_SIZE, METHOD, VERIFIER_SIZE, AesDecryptor, AesField
from mmf_win.archives.zipcrypto import HEADER_SIZE, decryptor
from mmf_win.errors import ArchiveError, PasswordError

ENCRYPTED, HAS_DESCRIPTOR = 1, 1 << 3
"""Flags of a member."""

LOCAL_HEADER = struct.Struct("<4s22xHH")
"""What precedes a member's data: a signature and the sizes of its name and its extra fields."""


@dataclass(frozen=True)
class Task:
    """A member to extract."""

    member: Member
    info: zipfile.ZipInfo
    target: Path

    @property
    def classic(self) -> bool:
        """Whether it is encrypted in the classic way."""
        return bool(self.info.flag_bits & ENCRYPTED) and self.info.compress_type != METHOD


class ZipReader:
    """Reads members through a file handle of its own, so each thread has one.

    Args:
        path: the zip.
        secret: the password's bytes.
    """

    def __init__(self, path: Path, secret: bytes = b"") -> None:
        self._path = path
        self._secret = secret
        self._file = path.open("rb")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def content(self, name: str, info: zipfile.ZipInfo) -> Iterator[bytes]:
        """The member's own bytes.

        Raises:
            PasswordError: the member's check bytes say that the password is not right.
            ArchiveError: the member is cut off, damaged or not authentic.
        """
        method = info.compress_type
        if method == METHOD:
            method = AesField.parse(info.extra).method
        packed = self.packed(name, info)
        return packed if method == zipfile.ZIP_STORED else self._inflated(name, packed)

    def packed(self, name: str, info: zipfile.ZipInfo) -> Iterator[bytes]:
        """The member's bytes as they were compressed, decrypted; see :meth:`content`.

        The first block is empty: whoever asks for no more has checked the password and decrypted nothing.
        """
        self._file.seek(self.data_offset(name, info))
        if not info.flag_bits & ENCRYPTED:
            yield from self._raw(name, info.compress_size)
        elif info.compress_type == METHOD:
            field = AesField.parse(info.extra)
            aes = AesDecryptor(self._secret, field, self._read(name, field.salt_size))
            if self._read(name, VERIFIER_SIZE) != aes.verifier:
                raise self._wrong_password(name)
            yield b""
            for block in self._raw(name, info.compress_size - field.overhead):
                yield aes.decrypt(block)
            if not aes.authentic(self._read(name, MAC_SIZE)):
                raise self._error("its authentication code is wrong", name)
        else:
            cipher = decryptor(self._secret)
            self.check_header(name, info, cipher.decrypt_bytes(self._read(name, HEADER_SIZE)))
            yield b""
            for block in self._raw(name, info.compress_size - HEADER_SIZE):
                yield cipher.decrypt_bytes(block)

    def data_offset(self, name: str, info: zipfile.ZipInfo) -> int:
        """Where the member's data begin.

        Raises:
            ArchiveError: there is no member where the directory says.
        """
        self._file.seek(info.header_offset)
        signature, name_size, extra_size = LOCAL_HEADER.unpack(self._read(name, LOCAL_HEADER.size))
        if signature != b"PK\x03\x04":
            raise self._error("there is no header where the directory says", name)
        return info.header_offset + LOCAL_HEADER.size + int(name_size) + int(extra_size)

    def read_at(self, name: str, offset: int, into: memoryview) -> None:
        """Fill ``into`` with what is at ``offset``.

        Raises:
            ArchiveError: the file ends before.
        """
        self._file.seek(offset)
        if self._file.readinto(into) < len(into):
            raise self._error("it is cut off", name)

    def check_header(self, name: str, info: zipfile.ZipInfo, header: bytes | memoryview) -> None:
        """Look at the decrypted header of a member.

        Raises:
            PasswordError: it was decrypted with another password than it was encrypted with.
        """
        if header[HEADER_SIZE - 1] != _check_byte(info):
            raise self._wrong_password(name)

    def _inflated(self, name: str, packed: Iterable[bytes]) -> Iterator[bytes]:
        inflater = Inflater()
        try:
            for block in packed:  # to its end even when all is unpacked: an AES member's MAC comes last
                yield from inflater.feed(block)
            yield inflater.flush()
        except Inflater.error as error:
            raise self._error("its compressed data is damaged", name) from error

    def _raw(self, name: str, size: int) -> Iterator[bytes]:
        while size > 0:
            block = self._read(name, min(size, BLOCK))
            size -= len(block)
            yield block

    def _read(self, name: str, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise self._error("it is cut off", name)
        return data

    def _error(self, reason: str, name: str) -> ArchiveError:
        return damaged(self._path, reason, name)

    def _wrong_password(self, name: str) -> PasswordError:
        return PasswordError(f"{self._path}: the password does not open member {name}")


def _check_byte(info: zipfile.ZipInfo) -> int:
    """What the last byte of the decrypted header must be (APPNOTE 6.1.6, and Info-ZIP's use of the time)."""
    if info.flag_bits & HAS_DESCRIPTOR:  # the CRC was not known yet, so the high byte of the DOS time
        _, _, _, hour, minute, _ = info.date_time
        return hour << 3 | minute >> 3
    return info.CRC >> 24
