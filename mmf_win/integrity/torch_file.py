"""torch's file format, read without torch: whether a file is intact, and what it holds beside tensors.

Since torch 1.6 it is a zip file whose members are stored as they are: ``<name>/data.pkl`` with the structure,
pickled, and ``<name>/data/0`` and on with the bytes of each storage
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

# The beginning of torch's file format before 1.6: its magic number, in a pickle.
_LEGACY_PATTERN = re.compile(rb"\x80[\x02-\x05].{0,9}\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.", re.DOTALL)
# Where a member's header has the lengths of its name and its extra field, which end it:
# https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3.7
_LENGTHS_OFFSET = 26
_DESCRIPTOR_SIZES = (0, 16, 24)  # bytes of what may follow a member and repeat its checksum and sizes
_MASKED_FLAG, _FOLDER_FLAG = 0x2000, 0x10  # flags that only a changed bit can have set
_BLOCK_BYTES = 1 << 20

#: Takes the next bytes of a file.
BytesCallback: TypeAlias = Callable[[memoryview], object]


def find_problem(
    path: Path, advance: AdvanceCallback = ignore_progress, update: BytesCallback = ignore_progress
) -> str | None:
    """Why ``path`` is not an intact file of torch's; None when it is.

    Every byte is read and checked against the checksums that torch wrote. A file of torch before 1.6 has
    none, and passes. Of an intact file, ``update``, such as that of a hash, gets all bytes in their order.
    """
    if path.is_dir():
        return "it is a folder"
    try:
        require_no_special_file(path)
        with path.open("rb") as file:
            is_legacy = _LEGACY_PATTERN.match(file.read(32))
            file.seek(0)
            found = None if is_legacy else _find_zip_problem(file, advance, update)
            if found is None and update is not ignore_progress:
                _feed_bytes(
                    file, sys.maxsize, update
                )  # what follows the last member, or all of a legacy file
            return found
    except FileNotFoundError:
        return "there is no such file"
    except OSError as error:
        return error.strerror or str(error)


def load_plain_contents(path: Path) -> Any:
    """What is in a file of torch's, with None or an empty object in the place of everything but plain values.

    Nothing that the file names is imported or called, so that a hostile one does no harm. Raises OSError
    where it cannot be read at all, and ValueError where it cannot be read as such a file.
    """
    try:
        require_no_special_file(path)
        with zipfile.ZipFile(path) as archive, archive.open(_pickle_members(archive)[0]) as file:
            return _PlainUnpickler(file).load()
    except OSError:
        raise
    except Exception as error:  # whatever a damaged pickle leads to
        raise ValueError(f"{path}: {error}") from error


def _find_zip_problem(file: BinaryIO, advance: AdvanceCallback, update: BytesCallback) -> str | None:
    try:
        archive = zipfile.ZipFile(file)
        if not _pickle_members(archive):
            return "it is a zip file but not a checkpoint"
        if min(member.header_offset for member in archive.infolist()) < 0:
            raise zipfile.BadZipFile("bytes are missing between its beginning and its end")
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError):
        return "it is cut off or not a checkpoint"
    members = archive.infolist()
    ends = [*(member.header_offset for member in members[1:]), archive.start_dir]
    position = 0
    for member, end in zip(members, ends, strict=True):
        try:
            archive.open(member).close()  # compares its header with the directory
            file.seek(position)
            intact = _is_intact(file, member, advance, update)
            position = file.tell()
            # Where the directory hides a member, there is a gap.
            intact = intact and end - position in _DESCRIPTOR_SIZES
        except OSError:
            raise
        except Exception:  # whatever a damaged header leads to
            intact = False
        if not intact:
            return f"it is damaged at {member.filename}"
    return None


def _is_intact(
    file: BinaryIO, member: zipfile.ZipInfo, advance: AdvanceCallback, update: BytesCallback
) -> bool:
    """Tell whether a member is stored uncompressed, as torch does, with its size and checksum.

    The file is at the end of the member before, and then at the end of this one.
    """
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
        return False
    if (
        member.volume or member.flag_bits & _MASKED_FLAG or member.external_attr & _FOLDER_FLAG
    ):  # torch refuses them
        return False
    # One buffer, and the faster checksum: zipfile takes five times as long, and each save waits for this.
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
    """Read that many bytes in pieces, each of which ``update`` gets, too."""
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
    """Stands for an object of any class; takes every state and item, and keeps none."""

    def __new__(cls, *_: object, **__: object) -> _Placeholder:
        return super().__new__(cls)

    def _ignore(self, *_: object) -> None:
        pass

    __setstate__ = __setitem__ = append = extend = _ignore


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles numbers, text and containers, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Placeholder

    def persistent_load(self, pid: object) -> None:
        """A storage, whose bytes lie elsewhere in the file."""
