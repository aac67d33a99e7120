"""Reader of torch's file format without torch: verification, and contents other than tensors.

Since torch 1.6, the format is a zip file with uncompressed members: ``<name>/data.pkl`` with the pickled
structure, and ``<name>/data/0``, ``<name>/data/1`` … with the bytes of each storage
(https://pytorch.org/docs/stable/notes/serialization.html).
"""

from __future__ import annotations

import pickle
import re
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from zlib_ng import zlib_ng

from mmf_win.files import require_no_special_file
from mmf_win.threads import AdvanceCallback, ignore_progress

# Start of torch's file format before 1.6: its pickled magic number.
_LEGACY_PATTERN = re.compile(rb"\x80[\x02-\x05].{0,9}\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.", re.DOTALL)
# Offset in a local header of the lengths of the name and the extra field, which end the header:
# https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3.7
_LENGTHS_OFFSET = 26
_DESCRIPTOR_SIZES = (0, 16, 24)  # sizes of the optional data descriptor after a member
_MASKED_FLAG, _FOLDER_FLAG = 0x2000, 0x10  # flags that torch never sets
_BLOCK_BYTES = 1 << 20

#: Called with the next bytes of a file.
BytesCallback: TypeAlias = Callable[[memoryview], object]


def find_problem(
    path: Path, advance: AdvanceCallback = ignore_progress, update: BytesCallback = ignore_progress
) -> str | None:
    """Verify a torch file and return the first problem, or None if it is intact.

    All bytes are compared with the checksums that torch wrote. A file of torch before 1.6 has no checksums
    and counts as intact.

    Args:
        path: The file.
        advance: Called with the number of bytes just read.
        update: Called with all bytes of an intact file in order, for example to hash them.

    Returns:
        The problem as an error message, or None.
    """
    if path.is_dir():
        return "is a folder"
    try:
        require_no_special_file(path)
        with path.open("rb") as file:
            is_legacy = _LEGACY_PATTERN.match(file.read(32))
            file.seek(0)
            problem = None if is_legacy else _find_zip_problem(file, advance, update)
            if problem is None and update is not ignore_progress:
                _feed_bytes(file, sys.maxsize, update)  # what follows the last member, or all of a legacy file
            return problem
    except FileNotFoundError:
        return "file not found"
    except OSError as error:
        return error.strerror or str(error)


def load_plain_contents(path: Path) -> Any:
    """Return the contents of a torch file with all objects other than plain values replaced.

    No code that the file refers to is imported or called, so a malicious file is harmless.

    Args:
        path: The file.

    Returns:
        Plain values as stored, None for tensor storages, and empty placeholders for other objects.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not a valid torch file.
    """
    try:
        require_no_special_file(path)
        with zipfile.ZipFile(path) as archive, archive.open(_pickle_members(archive)[0]) as file:
            return _PlainUnpickler(file).load()
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may raise any exception
        raise ValueError(f"{path}: {error}") from error


def _find_zip_problem(file: BinaryIO, advance: AdvanceCallback, update: BytesCallback) -> str | None:
    try:
        archive = zipfile.ZipFile(file)
        if not _pickle_members(archive):
            return "zip file, but not a checkpoint"
        if min(member.header_offset for member in archive.infolist()) < 0:
            raise zipfile.BadZipFile("bytes are missing in the middle")
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError):
        return "truncated or not a checkpoint"
    members = archive.infolist()
    ends = [*(member.header_offset for member in members[1:]), archive.start_dir]
    position = 0
    for member, end in zip(members, ends, strict=True):
        try:
            archive.open(member).close()  # compares the local header with the directory
            file.seek(position)
            intact = _is_intact(file, member, advance, update)
            position = file.tell()
            # A larger gap would be a member that is missing in the directory.
            intact = intact and end - position in _DESCRIPTOR_SIZES
        except OSError:
            raise
        except Exception:  # a damaged header may raise any exception
            intact = False
        if not intact:
            return f"damaged at {member.filename}"
    return None


def _is_intact(file: BinaryIO, member: zipfile.ZipInfo, advance: AdvanceCallback, update: BytesCallback) -> bool:
    """Return whether a member is stored uncompressed, like torch does, with its size and checksum."""
    # The file position is at the end of the previous member at the start, and of this one at the end.
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
        return False
    if member.volume or member.flag_bits & _MASKED_FLAG or member.external_attr & _FOLDER_FLAG:  # torch rejects them
        return False
    # One buffer and a faster CRC: zipfile takes five times as long, and each save waits for this check.
    position, checksum, size = file.tell(), 0, 0
    file.seek(member.header_offset + _LENGTHS_OFFSET)
    start = member.header_offset + _LENGTHS_OFFSET + 4 + sum(struct.unpack("<HH", file.read(4)))
    file.seek(position)
    _feed_bytes(file, start - position, update)
    for piece in _read_blocks(file, member.file_size, update):
        checksum = zlib_ng.crc32(piece, checksum)
        size += len(piece)
        advance(len(piece))
    return size == member.file_size and checksum == member.CRC


def _read_blocks(file: BinaryIO, count: int, update: BytesCallback) -> Iterator[memoryview]:
    """Yield the next ``count`` bytes in pieces, passing each to ``update`` as well."""
    buffer = memoryview(bytearray(max(0, min(count, _BLOCK_BYTES))))
    while count > 0 and (size := file.readinto(buffer[: min(count, _BLOCK_BYTES)])):  # type: ignore[attr-defined]
        update(buffer[:size])
        count -= size
        yield buffer[:size]


def _feed_bytes(file: BinaryIO, count: int, update: BytesCallback) -> None:
    for _ in _read_blocks(file, count, update):
        pass


def _pickle_members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    return [member for member in archive.infolist() if member.filename.endswith("/data.pkl")]


class _Placeholder:
    """Replacement for an object of any class; accepts every state and item, and stores none."""

    def __new__(cls, *_: object, **__: object) -> _Placeholder:
        return super().__new__(cls)

    def _ignore(self, *_: object) -> None:
        pass

    __setstate__ = __setitem__ = append = extend = _ignore


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler for numbers, text and containers only."""

    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Placeholder

    def persistent_load(self, pid: object) -> None:
        """Return None for a tensor storage, whose bytes are in another member."""
