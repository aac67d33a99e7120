"""Reading, decryption and decompression of zip members, one at a time."""

from __future__ import annotations

import bz2
import lzma
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from zlib_ng import zlib_ng

from mmf_win.archives.base import (
    BLOCK_BYTES,
    INFLATE_ERROR,
    MAX_DICTIONARY_BYTES,
    Member,
    damaged_error,
    unsupported_error,
)
from mmf_win.archives.winzip_aes import MAC_SIZE, VERIFIER_SIZE, AesDecryptor, AesField
from mmf_win.archives.zipcrypto import ENCRYPTION_HEADER_SIZE
from mmf_win.errors import ArchiveError, PasswordError

_HAS_DESCRIPTOR = 1 << 3
_HAS_END_MARKER = 1 << 1

#: Header before a member's data: the signature, and the sizes of its name and its extra fields.
LOCAL_HEADER = struct.Struct("<4s22xHH")


@dataclass(frozen=True)
class ZipMember(Member):
    """A file in a zip.

    Attributes:
        info: Its entry in the directory.
        aes: Its AES field, or None if it is plain or encrypted with ZipCrypto.
    """

    info: zipfile.ZipInfo = field(kw_only=True, compare=False)
    aes: AesField | None = None

    @property
    def packed_size(self) -> int:
        """Compressed size in bytes."""
        return self.info.compress_size


class ZipReader:
    """Reader of one member at a time; it has its own file handle, so each thread needs its own reader."""

    def __init__(self, path: Path, secret: bytes = b"") -> None:
        self._path = path
        self._secret = secret
        self._file = path.open("rb")
        self._block = bytearray(BLOCK_BYTES)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read_content(self, member: ZipMember) -> Iterator[bytes | memoryview]:
        """Yield the uncompressed content of a member; see :meth:`read_compressed`."""
        decoder = MemberDecoder(self._path, member)
        # Read to the end even if all content is unpacked: the MAC of an AES member comes last.
        for block in self.read_compressed(member):
            yield from decoder.feed(block)

    def read_compressed(self, member: ZipMember) -> Iterator[bytes | memoryview]:
        """Yield the compressed bytes of a member, decrypted.

        Yields:
            Blocks that are valid until the next one. The first block of an encrypted member is empty, so
            taking only that one checks the password without decrypting anything.

        Raises:
            PasswordError: According to the member's check bytes, the password is wrong.
            ArchiveError: The member is truncated, damaged or not authentic.
        """
        offset, size = self.data_offset(member), member.packed_size
        self._file.seek(offset)
        if not member.encrypted:
            yield from self._read_blocks(member, size)
        elif member.aes is not None:
            aes = AesDecryptor(self._secret, member.aes, self._read_exactly(member, member.aes.salt_size))
            if self._read_exactly(member, VERIFIER_SIZE) != aes.verifier:
                raise self._wrong_password_error(member)
            yield b""
            for block in self._read_blocks(member, size - member.aes.salt_size - VERIFIER_SIZE - MAC_SIZE):
                aes.decrypt(block)
                yield block
            if not aes.is_authentic(self._read_exactly(member, MAC_SIZE)):
                raise self._damaged_error("authentication code mismatch", member)
        else:
            # Only the extension module: the package's Python code would patch the standard library's zipfile.
            from _zipdecrypter import StandardZipDecrypter

            decrypt = StandardZipDecrypter(self._secret).decrypt_bytes
            self.require_matching_password(member, decrypt(self._read_exactly(member, ENCRYPTION_HEADER_SIZE)))
            yield b""
            for block in self._read_blocks(member, size - ENCRYPTION_HEADER_SIZE):
                yield decrypt(bytes(block))

    def data_offset(self, member: ZipMember) -> int:
        """Return the offset of a member's data; raise an ArchiveError if its local header is missing."""
        self._file.seek(member.info.header_offset)
        signature, name_size, extra_size = LOCAL_HEADER.unpack(self._read_exactly(member, LOCAL_HEADER.size))
        if signature != b"PK\x03\x04":
            raise self._damaged_error("local header is missing", member)
        return member.info.header_offset + LOCAL_HEADER.size + int(name_size) + int(extra_size)

    def read_at(self, member: ZipMember, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes at ``offset``; raise an ArchiveError if the file ends before."""
        self._file.seek(offset)
        self._read_into(member, buffer)

    def require_matching_password(self, member: ZipMember, header: bytes | memoryview) -> None:
        """Raise a PasswordError if the decrypted header of a ZipCrypto member has a wrong last byte.

        It must equal the high byte of the CRC (APPNOTE 6.1.6), or of the DOS time if the CRC was unknown when
        the header was written.
        """
        check_byte = member.info.CRC >> 24
        if member.info.flag_bits & _HAS_DESCRIPTOR:
            _, _, _, hour, minute, _ = member.info.date_time
            check_byte = hour << 3 | minute >> 3
        if header[ENCRYPTION_HEADER_SIZE - 1] != check_byte:
            raise self._wrong_password_error(member)

    def _read_blocks(self, member: ZipMember, size: int) -> Iterator[memoryview]:
        """Yield the next bytes of the file in blocks that reuse ``self._block``."""
        while size > 0:
            block = memoryview(self._block)[: min(size, BLOCK_BYTES)]
            self._read_into(member, block)
            size -= len(block)
            yield block

    def _read_into(self, member: ZipMember, buffer: memoryview) -> None:
        if self._file.readinto(buffer) < len(buffer):
            raise self._damaged_error("truncated", member)

    def _read_exactly(self, member: ZipMember, size: int) -> bytes:
        data = bytearray(size)
        self._read_into(member, memoryview(data))
        return bytes(data)

    def _damaged_error(self, reason: str, member: ZipMember) -> ArchiveError:
        return damaged_error(self._path, reason, member.name)

    def _wrong_password_error(self, member: ZipMember) -> PasswordError:
        hint = "check whether this member has another password or is damaged; the password opens others"
        return PasswordError(f"{self._path}: wrong password for member {member.name}", hint=hint)


class MemberDecoder:
    """Decompressor of one member that yields at most 1 MiB at once.

    LZMA data (APPNOTE 5.8.8) begins with the version of the SDK and the size of the properties, followed by
    the properties. A .lzma file has the uncompressed size after the properties instead; it is -1 if a marker
    ends the data.
    """

    def __init__(self, path: Path, member: ZipMember) -> None:
        self._path, self._member = path, member
        method = member.aes.method if member.aes else member.info.compress_type
        streams: dict[int, Callable[[], Any]] = {
            zipfile.ZIP_DEFLATED: partial(zlib_ng.decompressobj, wbits=-15),
            zipfile.ZIP_BZIP2: bz2.BZ2Decompressor,
            zipfile.ZIP_LZMA: partial(lzma.LZMADecompressor, memlimit=MAX_DICTIONARY_BYTES + BLOCK_BYTES),
        }
        self._stream = streams[method]() if method in streams else None
        size = -1 if member.info.flag_bits & _HAS_END_MARKER else member.size
        self._lzma_size = struct.pack("<q", size) if method == zipfile.ZIP_LZMA else b""

    def feed(self, packed: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """Yield the unpacked data of the next piece; raise an ArchiveError if it is damaged."""
        if self._stream is None:
            yield packed
            return
        if len(packed) and self._lzma_size:  # the first piece must contain the complete header
            packed, self._lzma_size = bytes(packed[4:9]) + self._lzma_size + bytes(packed[9:]), b""
        block = b""
        while not self._stream.eof and (len(packed) or block):  # an empty block: the piece is used up
            try:
                block = self._stream.decompress(packed, BLOCK_BYTES)
            except (INFLATE_ERROR, OSError, lzma.LZMAError) as error:
                if "Memory usage limit" in str(error):  # message of liblzma
                    reason = f"needs more than {MAX_DICTIONARY_BYTES >> 20} MiB of memory to unpack"
                    raise unsupported_error(self._path, reason, self._member.name) from error
                raise damaged_error(self._path, "compressed data is damaged", self._member.name) from error
            packed = getattr(self._stream, "unconsumed_tail", b"")  # bz2 and lzma keep it themselves
            yield block
