"""zip: plain, ZipCrypto or WinZip AES, with Zip64.

The standard library reads the directory at the end of the file; members are read here, so that one way
serves all three kinds, no member can unpack to more than it declares, and a faster engine for many members
at once can take the place of :meth:`ZipArchive._extract` alone.
"""

from __future__ import annotations

import contextlib
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from mmf_win.archives.base import BLOCK, Advance, Archive, Extracted, Member, with_problems
from mmf_win.archives.winzip_aes import MAC_SIZE, METHOD, VERIFIER_SIZE, AesDecryptor, AesField
from mmf_win.archives.zipcrypto import HEADER_SIZE, decryptor
from mmf_win.errors import ArchiveError, PasswordError

_ENCRYPTED, _HAS_DESCRIPTOR, _STRONG_ENCRYPTION, _UTF8 = 1, 1 << 3, 1 << 6, 1 << 11

_LOCAL_HEADER = struct.Struct("<4s22xHH")

# https://zlib.net/zlib_tech.html: deflate cannot shrink anything by more than this
_MAX_RATIO = 1032

# One header byte lets 1 wrong password in 256 through; so many members leave no wrong one in practice.
_MEMBERS_TRIED = 8
_MEMBERS_SUFFICIENT = 3
_READ_WHOLE_UP_TO = 16 << 20


class ZipArchive(Archive):
    """A zip file."""

    format = "zip"

    def __init__(self, path: Path, password: str | None = None) -> None:
        super().__init__(path, password)
        self._secret = b""
        self._infos: dict[str, zipfile.ZipInfo] = {}
        members = []
        for info, problem in _directory(path):
            member = self._member(info, problem)
            self._infos[member.name] = info
            members.append(member)
        self.members = with_problems(members)
        self._file: BinaryIO = path.open("rb")

    def close(self) -> None:
        """Close the archive's file."""
        self._file.close()

    def _member(self, info: zipfile.ZipInfo, problem: str | None) -> Member:
        crc: int | None = info.CRC
        if info.compress_type == METHOD:
            try:
                field = AesField.parse(info.extra)
            except ValueError as error:
                problem, crc = str(error), None
            else:
                problem = problem or _method_problem(field.method)
                crc = crc if field.version == 1 else None
        return Member(
            self._safe_name(_text(info)), info.file_size, bool(info.flag_bits & _ENCRYPTED), crc, problem
        )

    def _extract(self, wanted: Mapping[str, tuple[Member, Path]], progress: Advance) -> Iterator[Extracted]:
        for name in sorted(wanted, key=lambda name: self._infos[name].header_offset):
            member, target = wanted[name]
            yield self._write(member, target, self._content(name, self._secret), progress)

    def _password_fits(self) -> bool:
        assert self._password is not None
        smallest = sorted((m for m in self.members if m.encrypted and not m.problem), key=lambda m: m.size)
        for secret in _encodings(self._password):
            if self._opens(smallest, secret):
                self._secret = secret
                return True
        return False

    def _opens(self, members: list[Member], secret: bytes) -> bool:
        try:
            for member in members[:_MEMBERS_TRIED]:
                next(self._packed(member.name, secret), b"")
        except PasswordError:
            return False
        if len(members) >= _MEMBERS_SUFFICIENT or not members or members[0].size > _READ_WHOLE_UP_TO:
            return True
        return self._reads_whole(members[0], secret)

    def _reads_whole(self, member: Member, secret: bytes) -> bool:
        crc = 0
        try:
            for block in self._content(member.name, secret):
                crc = zlib.crc32(block, crc)
        except ArchiveError:
            return False
        return member.crc32 in (None, crc)

    def _content(self, name: str, secret: bytes) -> Iterator[bytes]:
        """The member's own bytes."""
        info = self._infos[name]
        method = info.compress_type
        if method == METHOD:
            method = AesField.parse(info.extra).method
        packed = self._packed(name, secret)
        return packed if method == zipfile.ZIP_STORED else self._inflated(name, packed)

    def _inflated(self, name: str, packed: Iterable[bytes]) -> Iterator[bytes]:
        inflate = zlib.decompressobj(wbits=-15)
        try:
            for block in packed:  # to its end even when inflate is done: an AES member's MAC comes last
                while block and not inflate.eof:
                    yield inflate.decompress(block, BLOCK)
                    block = inflate.unconsumed_tail
            yield inflate.flush()
        except zlib.error as error:
            raise self._error("its compressed data is damaged", name) from error

    def _packed(self, name: str, secret: bytes) -> Iterator[bytes]:
        """The member's bytes as they were compressed, decrypted.

        Raises:
            PasswordError: the member's check bytes say that the password is not right.
            ArchiveError: the member is cut off or not authentic.
        """
        info = self._infos[name]
        self._seek_data(info, name)
        if not info.flag_bits & _ENCRYPTED:
            yield from self._raw(name, info.compress_size)
        elif info.compress_type == METHOD:
            field = AesField.parse(info.extra)
            aes = AesDecryptor(secret, field, self._read(name, field.salt_size))
            if self._read(name, VERIFIER_SIZE) != aes.verifier:
                raise self._wrong_password(name)
            for block in self._raw(name, info.compress_size - field.overhead):
                yield aes.decrypt(block)
            if not aes.authentic(self._read(name, MAC_SIZE)):
                raise self._error("its authentication code is wrong", name)
        else:
            cipher = decryptor(secret)
            if cipher.decrypt_bytes(self._read(name, HEADER_SIZE))[-1] != _check_byte(info):
                raise self._wrong_password(name)
            for block in self._raw(name, info.compress_size - HEADER_SIZE):
                yield cipher.decrypt_bytes(block)

    def _seek_data(self, info: zipfile.ZipInfo, name: str) -> None:
        self._file.seek(info.header_offset)
        signature, name_size, extra_size = _LOCAL_HEADER.unpack(self._read(name, _LOCAL_HEADER.size))
        if signature != b"PK\x03\x04":
            raise self._error("there is no header where the directory says", name)
        self._file.seek(name_size + extra_size, 1)

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

    def _wrong_password(self, name: str) -> PasswordError:
        return PasswordError(f"{self.path}: the password does not open member {name}")


def _directory(path: Path) -> Iterator[tuple[zipfile.ZipInfo, str | None]]:
    """The files that the directory names, in the order of their data, with what is wrong with each."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
            ends = [*(info.header_offset for info in infos[1:]), archive.start_dir]
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, struct.error) as error:
        raise ArchiveError(
            f"{path}: not a whole zip: {error}",
            hint="the file may be incomplete or one part of several; get it again",
        ) from error
    for info, end in zip(infos, ends, strict=True):
        if not _text(info).endswith(("/", "\\")):
            yield info, _problem(info, end)


def _problem(info: zipfile.ZipInfo, end: int) -> str | None:
    if stat.S_ISLNK(info.external_attr >> 16):
        return "it is a link"
    if info.header_offset + _LOCAL_HEADER.size + info.compress_size > end:
        return "it overlaps the next member, as bombs do"
    if info.file_size > _MAX_RATIO * (info.compress_size + 1):
        return f"it claims to unpack to {info.file_size} bytes, which so little data cannot"
    if info.flag_bits & _STRONG_ENCRYPTION:
        return "PKWARE's strong encryption is not supported"
    return None if info.compress_type == METHOD else _method_problem(info.compress_type)


def _method_problem(method: int) -> str | None:
    if method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return None
    return f"it is compressed by method {method}, which is not supported"


def _text(info: zipfile.ZipInfo) -> str:
    """The name as it was meant: many tools write UTF-8 without saying so."""
    name = info.orig_filename
    if not info.flag_bits & _UTF8:
        with contextlib.suppress(UnicodeError):
            return name.encode("cp437").decode("utf-8")
    return name


def _encodings(password: str) -> Iterator[bytes]:
    """The bytes that tools may have made of a password: Unix ones use UTF-8, those of Windows a code page."""
    tried: set[bytes] = set()
    for codec in ("utf-8", "cp437", "latin-1"):
        with contextlib.suppress(UnicodeEncodeError):
            secret = password.encode(codec)
            if secret not in tried:
                tried.add(secret)
                yield secret


def _check_byte(info: zipfile.ZipInfo) -> int:
    """What the last byte of the decrypted header must be (APPNOTE 6.1.6, and Info-ZIP's use of the time)."""
    if info.flag_bits & _HAS_DESCRIPTOR:  # the CRC was not known yet, so the high byte of the DOS time
        _, _, _, hour, minute, _ = info.date_time
        return hour << 3 | minute >> 3
    return info.CRC >> 24
