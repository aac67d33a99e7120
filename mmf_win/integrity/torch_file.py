"""torch's file format, read without torch: whether a file is intact, and what it holds beside tensors.

Since torch 1.6 it is a zip file whose members are stored as they are: ``<name>/data.pkl`` with the structure,
pickled, and ``<name>/data/0`` and on with the bytes of each storage
(https://pytorch.org/docs/stable/notes/serialization.html).
"""

from __future__ import annotations

import os
import pickle
import re
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

from zlib_ng import zlib_ng

from mmf_win.files import require_end
from mmf_win.threads import Advance, ignore

# The beginning of torch's file format before 1.6: its magic number, in a pickle.
_LEGACY = re.compile(rb"\x80[\x02-\x05].{0,9}\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.", re.DOTALL)
# Where a member's header has the lengths of its name and its extra field, which end it:
# https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3.7
_LENGTHS = 26
_DESCRIPTORS = (0, 16, 24)  # bytes of what may follow a member and repeat its checksum and sizes
_MASKED, _FOLDER = 0x2000, 0x10  # flags that only a changed bit can have set
_PIECE = 1 << 20


def problem(path: Path, advance: Advance = ignore) -> str | None:
    """Why ``path`` is not an intact file of torch's; None when it is.

    Every byte is read and checked against the checksums that torch wrote. A file of torch before 1.6 has
    none, and passes.
    """
    if path.is_dir():
        return "it is a folder"
    try:
        require_end(path)
        with path.open("rb") as file:
            if _LEGACY.match(file.read(32)):
                return None
            return _problem(file, advance)
    except FileNotFoundError:
        return "there is no such file"
    except OSError as error:
        return error.strerror or str(error)


def plain_contents(path: Path) -> Any:
    """What is in a file of torch's, with None or an empty object in the place of everything but plain values.

    Nothing that the file names is imported or called, so that a hostile one does no harm. Raises OSError
    where it cannot be read at all, and ValueError where it cannot be read as such a file.
    """
    try:
        require_end(path)
        with zipfile.ZipFile(path) as archive, archive.open(_pickled(archive)[0]) as file:
            return _Plain(file).load()
    except OSError:
        raise
    except Exception as error:  # whatever a damaged pickle leads to
        raise ValueError(f"{path}: {error}") from error


def _problem(file: BinaryIO, advance: Advance) -> str | None:
    try:
        archive = zipfile.ZipFile(file)
        if not _pickled(archive):
            return "it is a zip file but not a checkpoint"
        if min(member.header_offset for member in archive.infolist()) < 0:
            raise zipfile.BadZipFile("bytes are missing between its beginning and its end")
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError):
        return "it is cut off or not a checkpoint"
    members = archive.infolist()
    ends = [*(member.header_offset for member in members[1:]), archive.start_dir]
    for member, end in zip(members, ends, strict=True):
        try:
            archive.open(member).close()  # compares its header with the directory
            # Where the directory hides a member, there is a gap.
            intact = _is_intact(file, member, advance) and end - file.tell() in _DESCRIPTORS
        except OSError:
            raise
        except Exception:  # whatever a damaged header leads to
            intact = False
        if not intact:
            return f"it is damaged at {member.filename}"
    return None


def _is_intact(file: BinaryIO, member: zipfile.ZipInfo, advance: Advance) -> bool:
    """Whether a member is stored as it is, as torch does, with the size and checksum in the directory."""
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
        return False
    if member.volume or member.flag_bits & _MASKED or member.external_attr & _FOLDER:  # torch refuses them
        return False
    file.seek(member.header_offset + _LENGTHS)
    file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
    # One buffer, and the faster checksum: zipfile takes five times as long, and each save waits for this.
    buffer, left, checksum = memoryview(bytearray(_PIECE)), member.file_size, 0
    while left and (size := file.readinto(buffer[: min(left, _PIECE)])):  # type: ignore[attr-defined]
        checksum = zlib_ng.crc32(buffer[:size], checksum)
        left -= size
        advance(size)
    return not left and checksum == member.CRC


def _pickled(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    return [member for member in archive.infolist() if member.filename.endswith("/data.pkl")]


class _Anything:
    """Stands for an object of any class; takes every state and item, and keeps none."""

    def __new__(cls, *_: object, **__: object) -> _Anything:
        return super().__new__(cls)

    def _take(self, *_: object) -> None:
        pass

    __setstate__ = __setitem__ = append = extend = _take


class _Plain(pickle.Unpickler):
    """Unpickles numbers, text and containers, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Anything

    def persistent_load(self, pid: object) -> None:
        """A storage, whose bytes lie elsewhere in the file."""
