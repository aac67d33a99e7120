"""Archives that are inconsistent, malicious or damaged."""

from __future__ import annotations

import io
import struct
import tarfile
import warnings
import zipfile
import zlib
from pathlib import Path
from random import Random
from typing import Literal
from unittest import mock

import py7zr
from py7zr.properties import DefaultFilters

from tests.worlds.memes import Files

_CENTRAL_SIGNATURE, _END_SIGNATURE = b"PK\x01\x02", b"PK\x05\x06"


def write_zip(path: Path, files: Files) -> Path:
    """Write a deflated zip without encryption."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def zip_with_name(path: Path, name: str) -> Path:
    """Write a zip with one member that has exactly this name."""
    info = zipfile.ZipInfo("x")
    info.filename = info.orig_filename = name  # the constructor would change some names
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, b"content")
    return path


def zip_with_duplicates(path: Path, *names: str) -> Path:
    """Write a zip whose members have these names, which may be equal."""
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns about duplicates
        for name in names:
            archive.writestr(name, name.encode())
    return path


def zip_with_link(path: Path) -> Path:
    """Write a zip whose member ``link`` is a symbolic link, stored as Unix tools do."""
    info = zipfile.ZipInfo("link")
    info.create_system = 3
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, "../../etc/passwd")
    return path


def declare_size(path: Path, size: int) -> Path:
    """Change the unpacked size of the first member in the zip's directory."""
    return _patch_directory(path, 24, size)


def declare_packed_size(path: Path, size: int) -> Path:
    """Change the packed size of the first member in the zip's directory."""
    return _patch_directory(path, 20, size)


def declare_encrypted(path: Path) -> Path:
    """Mark the first member as encrypted in the zip's directory."""
    return _patch_directory(path, 8, 1 | 8 << 16)  # and deflated


def declare_method(path: Path, method: int) -> Path:
    """Change the compression method of the first member in the zip's directory."""
    return _patch_directory(path, 8, method << 16)


def declare_version(path: Path, version: int) -> Path:
    """Change the version, times ten, that the first member requires according to the zip's directory."""
    return _patch_directory(path, 6, version)


def declare_offset(path: Path, offset: int) -> Path:
    """Change the offset of the last member in the zip's directory."""
    return _patch_directory(path, 42, offset, last=True)


def zip_with_shared_data(path: Path, content: bytes, count: int) -> Path:
    """Write a zip bomb: its directory has ``count`` members, which all share the same data."""
    data = write_zip(path, {"00000": content}).read_bytes()
    size, start = struct.unpack_from("<II", data, data.rindex(_END_SIGNATURE) + 12)
    entry = data[start : start + size]
    entries = b"".join(entry.replace(b"00000", f"{number:05}".encode()) for number in range(count))
    end = struct.pack("<4s4H2IH", _END_SIGNATURE, 0, 0, count, count, len(entries), start, 0)
    path.write_bytes(data[:start] + entries + end)
    return path


def join_zips(path: Path, first: Path, second: Path) -> Path:
    """Write a zip with the unchanged members of two zips."""
    parts, directories, count = b"", b"", 0
    for source in (first, second):
        data = source.read_bytes()
        entries, size, start = struct.unpack_from("<HII", data, data.rindex(_END_SIGNATURE) + 10)
        directory, at = bytearray(data[start : start + size]), 0
        while at < size:
            (offset,) = struct.unpack_from("<I", directory, at + 42)
            struct.pack_into("<I", directory, at + 42, offset + len(parts))
            at += 46 + sum(struct.unpack_from("<3H", directory, at + 28))
        parts, directories, count = parts + data[:start], directories + directory, count + entries
    end = struct.pack("<4s4H2IH", _END_SIGNATURE, 0, 0, count, count, len(directories), len(parts), 0)
    path.write_bytes(parts + directories + end)
    return path


def flip_byte(path: Path, offset: int) -> Path:
    """Invert the bits of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)
    return path


def truncate_file(path: Path, fraction: float = 0.5) -> Path:
    """Truncate a file, as an interrupted download does."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])
    return path


def write_zeros_tar(path: Path, *infos: tarfile.TarInfo, mode: Literal["w", "w:gz"] = "w") -> Path:
    """Write a tar whose members contain zeros, as many as their sizes say."""
    with tarfile.open(path, mode) as tar:
        for info in infos:
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    return path


def tar_member(
    name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", pax_headers: dict[str, str] | None = None
) -> tarfile.TarInfo:
    """Return a member for :func:`write_zeros_tar`."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    info.pax_headers = pax_headers or {}
    return info


def seven_zip_with_dictionary(path: Path, files: Files, code: int, *, in_header: bool = False) -> Path:
    """Write a 7z in which LZMA2 declares a dictionary size by code: 32 is 256 MiB and 34 is 512 MiB.

    LZMA2 packs the files, or the list of members if ``in_header`` is true.
    """
    with py7zr.SevenZipFile(path, "w", filters=[{"id": py7zr.FILTER_LZMA2, "preset": 1}]) as archive:
        archive.set_encoded_header_mode(in_header)
        for name, content in files.items():
            archive.writestr(content, name)
    data = bytearray(path.read_bytes())
    data[data.index(b"\x21\x21\x01", _header_range(data).start) + 3] = code
    return _write_with_checksums(path, data)


def seven_zip_with_method(path: Path, files: Files, method: int, password: str | None = None) -> Path:
    """Write a 7z whose Delta filter is declared as another method, a number of one byte."""
    filters = [{"id": py7zr.FILTER_DELTA}, {"id": py7zr.FILTER_LZMA2, "preset": 1}]
    filters += [{"id": py7zr.FILTER_CRYPTO_AES256_SHA256}] if password else []
    with py7zr.SevenZipFile(path, "w", filters=filters, password=password) as archive:
        archive.set_encoded_header_mode(False)
        for name, content in files.items():
            archive.writestr(content, name)
    data = bytearray(path.read_bytes())
    data[data.index(b"\x21\x03\x01", _header_range(data).start) + 1] = method
    return _write_with_checksums(path, data)


def seven_zip_with_packed_list(path: Path, files: Files, *filters: dict[str, int]) -> Path:
    """Write a 7z whose list of members is packed with these filters of py7zr."""
    with (
        mock.patch.object(DefaultFilters, "ENCODED_HEADER_FILTER", [*filters]),
        py7zr.SevenZipFile(path, "w") as archive,
    ):
        for name, content in files.items():
            archive.writestr(content, name)
    return path


def seven_zip_with_header_at(path: Path, offset: int) -> Path:
    """Write a 7z that declares an offset of its header, with a correct checksum."""
    py7zr.SevenZipFile(path, "w").close()
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 12, offset)
    struct.pack_into("<I", data, 8, zlib.crc32(data[12:32]))
    path.write_bytes(data)
    return path


def mutate_header(path: Path, rng: Random) -> Path:
    """Change bytes of a 7z's header and of the packed list of members before it, and correct the checksums."""
    data = bytearray(path.read_bytes())
    header = _header_range(data)
    for _ in range(rng.choice((1, 2, 4, 8))):
        data[rng.randrange(max(32, header.start - 60), header.stop)] = rng.randrange(256)
    return _write_with_checksums(path, data)


def _header_range(data: bytes) -> range:
    start, size = struct.unpack_from("<QQ", data, 12)
    return range(32 + start, 32 + start + size)


def _write_with_checksums(path: Path, data: bytearray) -> Path:
    """Write the content of a 7z with correct checksums of its headers."""
    header = _header_range(data)
    struct.pack_into("<I", data, 28, zlib.crc32(data[header.start : header.stop]))
    struct.pack_into("<I", data, 8, zlib.crc32(data[12:32]))
    path.write_bytes(data)
    return path


def _patch_directory(path: Path, offset: int, value: int, *, last: bool = False) -> Path:
    data = bytearray(path.read_bytes())
    start = data.rindex(_CENTRAL_SIGNATURE) if last else data.index(_CENTRAL_SIGNATURE)
    struct.pack_into("<I", data, start + offset, value)
    path.write_bytes(data)
    return path
