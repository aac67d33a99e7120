"""The members of a zip, read one at a time."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmf_win.archives.base import BLOCK, Member, damaged
from mmf_win.archives.inflate import Inflater
from mmf_win.archives.winzip_aes import (
    MAC_SIZE,
    METHOD,
    VERIFIER_SIZE,
    AesDecryptor,
    AesField,
    AesKeys,
    derive_keys,
)
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
        return bool(self.info.flag_bits & ENCRYPTED) and not self.aes

    @property
    def aes(self) -> bool:
        """Whether it is encrypted in WinZip's way."""
        return _has_aes(self.info)


class ZipReader:
    """Reads members, one at a time, through a file handle of its own, so each thread has one.

    Args:
        path: the zip.
        secret: the password's bytes.
    """

    def __init__(self, path: Path, secret: bytes = b"") -> None:
        self._path = path
        self._secret = secret
        self._file = path.open("rb")
        self._block = bytearray(BLOCK)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def content(
        self, name: str, info: zipfile.ZipInfo, keys: AesKeys | None = None
    ) -> Iterator[bytes | memoryview]:
        """The member's own bytes; see :meth:`packed`.

        Raises:
            PasswordError: the member's check bytes say that the password is not right.
            ArchiveError: the member is cut off, damaged or not authentic.
        """
        method = AesField.parse(info.extra).method if _has_aes(info) else info.compress_type
        packed = self.packed(name, info, keys)
        return packed if method == zipfile.ZIP_STORED else self._inflated(name, packed)

    def packed(
        self, name: str, info: zipfile.ZipInfo, keys: AesKeys | None = None
    ) -> Iterator[bytes | memoryview]:
        """The member's bytes as they were compressed, decrypted. Each block is good until the next one.

        The first block is empty: whoever asks for no more has checked the password and decrypted nothing.

        Args:
            name: of the member, for messages.
            info: from the archive's directory.
            keys: from :meth:`aes_keys`, which are derived here where they are not given.

        Raises:
            PasswordError, ArchiveError: see :meth:`content`.
        """
        offset = self.data_offset(name, info)
        if not info.flag_bits & ENCRYPTED:
            yield from self._raw(name, offset, info.compress_size)
        elif _has_aes(info):
            field = AesField.parse(info.extra)
            keys = keys or self.aes_keys([(name, info)])[0]
            self._file.seek(offset + field.salt_size)
            if self._read(name, VERIFIER_SIZE) != keys.verifier:
                raise self._wrong_password(name)
            yield b""
            aes = AesDecryptor(keys)
            for block in self._raw(name, self._file.tell(), info.compress_size - field.overhead):
                aes.decrypt(self._block, len(block))
                yield block
            if not aes.authentic(self._read(name, MAC_SIZE)):
                raise self._error("its authentication code is wrong", name)
        else:
            cipher = decryptor(self._secret)
            self._file.seek(offset)
            self.check_header(name, info, cipher.decrypt_bytes(self._read(name, HEADER_SIZE)))
            yield b""
            for block in self._raw(name, offset + HEADER_SIZE, info.compress_size - HEADER_SIZE):
                yield cipher.decrypt_bytes(bytes(block))

    def aes_keys(self, members: Sequence[tuple[str, zipfile.ZipInfo]]) -> list[AesKeys]:
        """The keys of members with WinZip's encryption; the more at once, the less each takes.

        Raises:
            ArchiveError: there is no such member, or it is cut off.
        """
        fields = [AesField.parse(info.extra) for _, info in members]
        salts = []
        for (name, info), field in zip(members, fields, strict=True):
            self._file.seek(self.data_offset(name, info))
            salts.append(self._read(name, field.salt_size))
        return derive_keys(self._secret, fields, salts)

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

    def _inflated(self, name: str, packed: Iterable[bytes | memoryview]) -> Iterator[bytes]:
        inflater = Inflater()
        try:
            for block in packed:  # to its end even when all is unpacked: an AES member's MAC comes last
                yield from inflater.feed(block)
            yield inflater.flush()
        except Inflater.error as error:
            raise self._error("its compressed data is damaged", name) from error

    def _raw(self, name: str, offset: int, size: int) -> Iterator[memoryview]:
        """What is in the file, in blocks that each lie at the beginning of ``self._block``."""
        self._file.seek(offset)
        while size > 0:
            block = memoryview(self._block)[: min(size, BLOCK)]
            if self._file.readinto(block) < len(block):
                raise self._error("it is cut off", name)
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
        return PasswordError(
            f"{self._path}: the password does not open member {name}",
            hint="it opens others; this one is damaged, or was encrypted with another password",
        )


def _has_aes(info: zipfile.ZipInfo) -> bool:
    return bool(info.flag_bits & ENCRYPTED) and info.compress_type == METHOD


def _check_byte(info: zipfile.ZipInfo) -> int:
    """What the last byte of the decrypted header must be (APPNOTE 6.1.6, and Info-ZIP's use of the time)."""
    if info.flag_bits & HAS_DESCRIPTOR:  # the CRC was not known yet, so the high byte of the DOS time
        _, _, _, hour, minute, _ = info.date_time
        return hour << 3 | minute >> 3
    return info.CRC >> 24
