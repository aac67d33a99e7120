"""zip archives: plain, ZipCrypto or WinZip AES, with Zip64.

The standard library reads the directory at the end of the file. mmfw itself reads the members: one
implementation serves all three kinds, no member can exceed its declared size, and many are decrypted in
parallel.
"""

from __future__ import annotations

import contextlib
import stat
import struct
import zipfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mmf_win.archives import winzip_aes
from mmf_win.archives.base import (
    GET_AGAIN_HINT,
    Archive,
    ExtractedFile,
    PasswordCallback,
    TargetChooser,
    damaged_error,
    split_archive_error,
    unsupported_error,
)
from mmf_win.archives.zip_extract import extract_zip_members
from mmf_win.archives.zip_reader import LOCAL_HEADER, ZipMember, ZipReader
from mmf_win.archives.zipcrypto import ENCRYPTION_HEADER_SIZE
from mmf_win.errors import PasswordError
from mmf_win.sniffing import UNPACK_HINT
from mmf_win.threads import AdvanceCallback

_ENCRYPTED_FLAG, _STRONG_ENCRYPTION_FLAG, _UTF8_FLAG = 1, 1 << 6, 1 << 11
_MEMBER_COUNT_MODULUS = 1 << 16  # a zip without Zip64 records its number of members in 16 bits

_SUPPORTED_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
# Unsupported methods of APPNOTE 4.4.5
_METHOD_NAMES = {1: "Shrink", 6: "Implode", 9: "Deflate64", 10: "DCL Implode", 18: "TERSE", 20: "Zstandard"}
_METHOD_NAMES |= {2: "Reduce", 3: "Reduce", 4: "Reduce", 5: "Reduce", 16: "CMPSC", 19: "LZ77", 93: "Zstandard"}
_METHOD_NAMES |= {94: "MP3", 95: "xz", 96: "JPEG", 97: "WavPack", 98: "PPMd"}

# Maximum compression ratio of deflate: https://zlib.net/zlib_tech.html
_MAX_RATIO = 1032

_MAX_DIRECTORY_BYTES = 1 << 25
# The check byte of one header accepts 1 wrong password in 256; this many members reject practically all.
_MAX_MEMBERS_TRIED = 8
_MIN_MEMBERS_OPENED = 3
_MAX_TEST_READ_BYTES = 16 << 20


class ZipArchive(Archive):
    """A zip file."""

    def __init__(self, path: Path, ask: PasswordCallback | None = None) -> None:
        super().__init__(path, ask)
        self._secret = b""
        infos = list(_read_directory(path))
        self._require_member_limit(len(infos))
        self._require_matching_names(info for info, problem in infos if problem is None)
        self.members: Sequence[ZipMember] = self._mark_name_problems(
            self._make_member(info, problem) for info, problem in infos if not _decode_name(info).endswith(("/", "\\"))
        )

    def _require_matching_names(self, infos: Iterable[zipfile.ZipInfo]) -> None:
        """Reject a directory with wrong names: it has no checksum, and damage could make a file disappear."""
        with self.path.open("rb") as file:
            for info in infos:
                file.seek(info.header_offset)
                header = file.read(LOCAL_HEADER.size)
                if not header.startswith(b"PK\3\4") or len(header) < LOCAL_HEADER.size:
                    continue  # extracting this member raises an error
                local_name = file.read(LOCAL_HEADER.unpack(header)[1])
                name = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8_FLAG else "cp437")
                if local_name.replace(b"\\", b"/") != name.replace(b"\\", b"/"):  # some writers mix them
                    raise self._damaged_error("local header has another name", _decode_name(info))

    def _make_member(self, info: zipfile.ZipInfo, problem: str | None) -> ZipMember:
        encrypted, method = bool(info.flag_bits & _ENCRYPTED_FLAG), info.compress_type
        aes = None
        if encrypted and method == winzip_aes.METHOD:
            if aes := winzip_aes.find_field(info.extra):
                method = aes.method
            else:
                problem = "malformed AES header"
        is_deflate = method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if is_deflate and info.file_size > _MAX_RATIO * (info.compress_size + 1):
            problem = f"declared size of {info.file_size} bytes is impossible for its compressed data"
        hint = GET_AGAIN_HINT if problem else UNPACK_HINT
        if stat.S_ISLNK(info.external_attr >> 16):
            problem = problem or "symbolic links are not supported"
        elif info.flag_bits & _STRONG_ENCRYPTION_FLAG:
            problem = problem or "PKWARE strong encryption is not supported"
        elif method not in _SUPPORTED_METHODS:
            name = _METHOD_NAMES.get(method, f"method {method}")
            problem = problem or f"unsupported compression: {name}"
        crc = info.CRC if aes is None or aes.version == 1 else None
        name = self._safe_name(_decode_name(info))
        return ZipMember(name, info.file_size, encrypted, crc, problem, hint, info=info, aes=aes)

    def _extract(self, choose: TargetChooser, progress: AdvanceCallback) -> Generator[ExtractedFile, None, None]:
        targets = self._select_targets(self.members, choose)
        return extract_zip_members(self.path, self._secret, targets, progress)

    def _is_password_correct(self) -> bool:
        smallest = sorted((m for m in self.members if m.encrypted and not m.problem), key=lambda m: m.size)
        for secret in _encode_password(self._require_password()):
            if self._can_open(smallest, secret):
                self._secret = secret
                return True
        return False

    def _can_open(self, members: list[ZipMember], secret: bytes) -> bool:
        with contextlib.closing(ZipReader(self.path, secret)) as reader:
            tried = members[:_MAX_MEMBERS_TRIED]
            opened = sum(self._can_open_member(member, reader) for member in tried)
            if len(tried) >= _MIN_MEMBERS_OPENED:  # if most members open, the others are damaged
                return opened >= _MIN_MEMBERS_OPENED and opened > len(tried) // 2
            small = [member for member in tried[:1] if member.size <= _MAX_TEST_READ_BYTES]
            return opened == len(tried) and all(self._is_intact(m, reader.read_content(m)) for m in small)

    def _can_open_member(self, member: ZipMember, reader: ZipReader) -> bool:
        with contextlib.suppress(PasswordError):
            next(reader.read_compressed(member), b"")
            return True
        return False


def _read_directory(path: Path) -> Iterator[tuple[zipfile.ZipInfo, str | None]]:
    """Yield the entries of the directory in the order of their data, each with its problem or None."""
    module: Any = zipfile
    try:
        with path.open("rb") as file:
            end = module._EndRecData(file)
        if end and end[module._ECD_DISK_NUMBER]:
            raise split_archive_error(path, path.name)
        if end and end[module._ECD_SIZE] > _MAX_DIRECTORY_BYTES:  # zipfile would read it into memory
            raise zipfile.BadZipFile(f"central directory too large ({end[module._ECD_SIZE]} bytes)")
        with zipfile.ZipFile(path) as archive:
            infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
            data_ends = [*(info.header_offset for info in infos), archive.start_dir][1:]
        if infos and infos[0].header_offset < 0:
            raise zipfile.BadZipFile("beginning of the file is missing")
        # A damaged comment length is not detected otherwise and may hide the entries that follow.
        if (len(infos) - (declared_count := end[module._ECD_ENTRIES_TOTAL])) % _MEMBER_COUNT_MODULUS:
            raise zipfile.BadZipFile(f"central directory has {len(infos)} members instead of {declared_count}")
    except NotImplementedError as error:
        raise unsupported_error(path, f"unsupported kind of zip: {error}") from error
    except (zipfile.BadZipFile, ValueError, EOFError, struct.error) as error:
        if "multiple disks" in str(error):  # raised for a Zip64
            raise split_archive_error(path, path.name) from error
        raise damaged_error(path, f"not a valid zip: {error}") from error
    for info, end in zip(infos, data_ends, strict=True):
        yield info, _find_entry_problem(info, end)


def _find_entry_problem(info: zipfile.ZipInfo, data_end: int) -> str | None:
    """Return what is wrong with a member whose data must end at ``data_end``, or None."""
    if info.header_offset + LOCAL_HEADER.size + info.compress_size > data_end:
        return "overlaps the next member, as in a zip bomb"
    if info.flag_bits & _ENCRYPTED_FLAG and info.compress_size < ENCRYPTION_HEADER_SIZE:
        return "too short for an encrypted member"
    return None


def _decode_name(info: zipfile.ZipInfo) -> str:
    """Return a member's name; many tools write UTF-8 without setting the flag for it."""
    name = info.orig_filename
    if not info.flag_bits & _UTF8_FLAG:
        with contextlib.suppress(UnicodeError):
            return name.encode("cp437").decode("utf-8")
    return name


def _encode_password(password: str) -> Iterable[bytes]:
    """Return possible encodings of a password: tools on Unix use UTF-8, tools on Windows a code page."""
    secrets: dict[bytes, None] = {}
    for codec in ("utf-8", "cp437", "latin-1"):
        with contextlib.suppress(UnicodeEncodeError):
            secrets[password.encode(codec)] = None
    return secrets
