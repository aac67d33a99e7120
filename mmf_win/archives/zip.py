"""zip: plain, ZipCrypto or WinZip AES, with Zip64.

The standard library reads the directory at the end of the file; members are read here, so that one way
serves all three kinds, no member can unpack to more than it declares, and many can be decrypted side by side.
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
from mmf_win.archives.base import GET_AGAIN, Archive, Ask, Choose, Extracted, damaged, split, unsupported
from mmf_win.archives.zip_extract import extract
from mmf_win.archives.zip_reader import LOCAL_HEADER, ZipMember, ZipReader
from mmf_win.archives.zipcrypto import HEADER_SIZE
from mmf_win.errors import PasswordError
from mmf_win.sniffing import UNPACK_HINT
from mmf_win.threads import AdvanceCallback

_ENCRYPTED, _STRONG_ENCRYPTION, _UTF8 = 1, 1 << 6, 1 << 11
_MODULUS = 1 << 16  # of how many members a zip has by its own account, where it is no Zip64

_READ = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
# Other methods of APPNOTE 4.4.5
_METHODS = {1: "Shrink", 6: "Implode", 9: "Deflate64", 10: "DCL Implode", 18: "TERSE", 20: "Zstandard"}
_METHODS |= {2: "Reduce", 3: "Reduce", 4: "Reduce", 5: "Reduce", 16: "CMPSC", 19: "LZ77", 93: "Zstandard"}
_METHODS |= {94: "MP3", 95: "xz", 96: "JPEG", 97: "WavPack", 98: "PPMd"}

# https://zlib.net/zlib_tech.html: deflate cannot shrink anything by more than this
_MAX_RATIO = 1032

# One header byte lets 1 wrong password in 256 through; so many members leave no wrong one in practice.
_MOST_DIRECTORY = 1 << 25
_MEMBERS_TRIED = 8
_MEMBERS_SUFFICIENT = 3
_READ_UP_TO = 16 << 20


class ZipArchive(Archive):
    """A zip file."""

    def __init__(self, path: Path, ask: Ask | None = None) -> None:
        super().__init__(path, ask)
        self._secret = b""
        infos = list(_directory(path))
        self._require_few(len(infos))
        self._require_names(info for info, problem in infos if problem is None)
        self.members: Sequence[ZipMember] = self._with_problems(
            self._member(info, problem) for info, problem in infos if not _text(info).endswith(("/", "\\"))
        )

    def _require_names(self, infos: Iterable[zipfile.ZipInfo]) -> None:
        """Refuse a directory that was damaged: no checksum protects it, and a file might seem to be gone."""
        with self.path.open("rb") as file:
            for info in infos:
                file.seek(info.header_offset)
                header = file.read(LOCAL_HEADER.size)
                if not header.startswith(b"PK\3\4") or len(header) < LOCAL_HEADER.size:
                    continue  # who wants this member is told
                own = file.read(LOCAL_HEADER.unpack(header)[1])
                name = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")
                if own.replace(b"\\", b"/") != name.replace(b"\\", b"/"):  # some writers mix them
                    raise self._error("its own header has another name", _text(info))

    def _member(self, info: zipfile.ZipInfo, problem: str | None) -> ZipMember:
        encrypted, method = bool(info.flag_bits & _ENCRYPTED), info.compress_type
        aes = None
        if encrypted and method == winzip_aes.METHOD:
            if aes := winzip_aes.find_field(info.extra):
                method = aes.method
            else:
                problem = "its AES header is malformed"
        by_deflate = method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if by_deflate and info.file_size > _MAX_RATIO * (info.compress_size + 1):
            problem = f"it claims to unpack to {info.file_size} bytes, which so little data cannot"
        hint = GET_AGAIN if problem else UNPACK_HINT
        if stat.S_ISLNK(info.external_attr >> 16):
            problem = problem or "it is a symbolic link"
        elif info.flag_bits & _STRONG_ENCRYPTION:
            problem = problem or "it has PKWARE's strong encryption, which mmfw does not read"
        elif method not in _READ:
            name = _METHODS.get(method, f"method {method}")
            problem = problem or f"it is compressed by {name}, which mmfw does not read"
        crc = info.CRC if aes is None or aes.version == 1 else None
        name = self._safe_name(_text(info))
        return ZipMember(name, info.file_size, encrypted, crc, problem, hint, info=info, aes=aes)

    def _extract(self, choose: Choose, progress: AdvanceCallback) -> Generator[Extracted, None, None]:
        targets = self._chosen(self.members, choose)
        return extract(self.path, self._secret, targets, progress)

    def _password_fits(self) -> bool:
        smallest = sorted((m for m in self.members if m.encrypted and not m.problem), key=lambda m: m.size)
        for secret in _encodings(self._require_password()):
            if self._opens(smallest, secret):
                self._secret = secret
                return True
        return False

    def _opens(self, members: list[ZipMember], secret: bytes) -> bool:
        with contextlib.closing(ZipReader(self.path, secret)) as reader:
            tried = members[:_MEMBERS_TRIED]
            opened = sum(self._opens_one(member, reader) for member in tried)
            if len(tried) >= _MEMBERS_SUFFICIENT:  # a few that do not open are damaged, if the others do
                return opened >= _MEMBERS_SUFFICIENT and opened > len(tried) // 2
            small = [member for member in tried[:1] if member.size <= _READ_UP_TO]
            return opened == len(tried) and all(self._is_intact(m, reader.content(m)) for m in small)

    def _opens_one(self, member: ZipMember, reader: ZipReader) -> bool:
        with contextlib.suppress(PasswordError):
            next(reader.packed(member), b"")
            return True
        return False


def _directory(path: Path) -> Iterator[tuple[zipfile.ZipInfo, str | None]]:
    """What the directory names, in the order of their data, with what is wrong with each."""
    module: Any = zipfile
    try:
        with path.open("rb") as file:
            end = module._EndRecData(file)
        if end and end[module._ECD_DISK_NUMBER]:
            raise split(path, path.name)
        if end and end[module._ECD_SIZE] > _MOST_DIRECTORY:  # it would be read into memory
            raise zipfile.BadZipFile(f"a directory of {end[module._ECD_SIZE]} bytes, which no real one has")
        with zipfile.ZipFile(path) as archive:
            infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
            ends = [*(info.header_offset for info in infos), archive.start_dir][1:]
        if infos and infos[0].header_offset < 0:
            raise zipfile.BadZipFile("its beginning is missing")
        # The length of a comment, which nothing protects, may hide the entries that follow.
        if (len(infos) - (stated := end[module._ECD_ENTRIES_TOTAL])) % _MODULUS:
            raise zipfile.BadZipFile(f"its directory has {len(infos)} members, not {stated}")
    except NotImplementedError as error:
        raise unsupported(path, f"it is a kind of zip that mmfw does not read: {error}") from error
    except (zipfile.BadZipFile, ValueError, EOFError, struct.error) as error:
        if "multiple disks" in str(error):  # of a Zip64
            raise split(path, path.name) from error
        raise damaged(path, f"not a valid zip: {error}") from error
    for info, end in zip(infos, ends, strict=True):
        yield info, _problem(info, end)


def _problem(info: zipfile.ZipInfo, end: int) -> str | None:
    """Return what is damaged of a member whose data end before ``end``."""
    if info.header_offset + LOCAL_HEADER.size + info.compress_size > end:
        return "it overlaps the next member, as bombs do"
    if info.flag_bits & _ENCRYPTED and info.compress_size < HEADER_SIZE:
        return "it is too short to be encrypted"
    return None


def _text(info: zipfile.ZipInfo) -> str:
    """The name as it was meant: many tools write UTF-8 without saying so."""
    name = info.orig_filename
    if not info.flag_bits & _UTF8:
        with contextlib.suppress(UnicodeError):
            return name.encode("cp437").decode("utf-8")
    return name


def _encodings(password: str) -> Iterable[bytes]:
    """The bytes that tools may have made of a password: Unix ones use UTF-8, those of Windows a code page."""
    secrets: dict[bytes, None] = {}
    for codec in ("utf-8", "cp437", "latin-1"):
        with contextlib.suppress(UnicodeEncodeError):
            secrets[password.encode(codec)] = None
    return secrets
