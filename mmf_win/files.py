"""Files that take their place complete or not at all, and JSON in them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from mmf_win.errors import PERMISSION_ERRNOS, DataError, InUseError, MmfwError, ResourceError

#: The number of attempts to change a file that another program may hold.
MAX_TRIES = 20 if sys.platform == "win32" else 1
#: The seconds between two attempts.
RETRY_PAUSE_SECONDS = 0.1
_TRANSIENT_ERRNOS = {errno.EACCES, errno.EPERM, errno.ENOTEMPTY}
#: The numbers of errors that mean that no more can be written.
DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_WRITE_FAILURE_ERRNOS = {errno.EBADF, errno.EINVAL, errno.EIO}
#: Begins what :func:`add_path_to_errors` and locks say of an operation that a disk does not support.
_UNSUPPORTED_PREFIX = "it cannot be "
_MEMORY_HINT = "close other programs, or raise the limit of memory, and run the same command again"
_OTHER_DISK_HINT = (
    "keep it on another disk: --save-dir or MMF_SAVE_DIR for runs, --data-dir or MMF_DATA_DIR for data"
)
_ERRNO_HINTS = (
    ({errno.EFBIG}, "see what limits the size of a file: ulimit -f, or the file system"),
    ({errno.ENOMEM}, _MEMORY_HINT),
    (DISK_FULL_ERRNOS, "free some space and run the same command again"),
    ({errno.EIO}, "check the disk or the network drive that it lies on, and run the same command again"),
    ({errno.ENOLCK}, _OTHER_DISK_HINT),
    ({errno.EBUSY}, "if it is a mount, mount the folder above it instead"),
    ({errno.EEXIST}, "remove what has this name or, if it is a link, mount the disk that it leads to"),
    (PERMISSION_ERRNOS, "see who may read and write there, or name another folder"),
)
# https://learn.microsoft.com/windows/win32/debug/system-error-codes--0-499-
_IN_USE_WINERRORS = {5, 32, 33}  # access denied, a sharing violation, a lock violation


def rename(old: Path, new: Path) -> None:
    """Rename a folder to a name that is free, or a file; a reader of a name that is taken sees either file.

    On Windows, an OSError where somebody has ``new`` open.
    """
    _retry_change(lambda: old.replace(new))


def remove(path: Path) -> None:
    """Remove a file, if it is there. On Windows, an OSError where somebody has it open."""
    _retry_change(lambda: path.unlink(missing_ok=True))


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it; after an OSError, what is left can be removed later."""
    _retry_change(lambda: shutil.rmtree(folder))


def _retry_change(change: Callable[[], object]) -> None:
    """Make a change that Windows may refuse for a moment, in which a virus scanner holds a fresh file.

    Hence two seconds of patience there. A folder may also hold a file that was removed while it was open.
    """
    for _ in range(MAX_TRIES - 1):
        try:
            change()
            return
        except OSError as error:
            if error.errno not in _TRANSIENT_ERRNOS:
                raise
            time.sleep(RETRY_PAUSE_SECONDS)
    change()


@contextmanager
def add_path_to_errors(path: Path) -> Iterator[None]:
    """Let an error of writing name the file.

    The system names none where a disk, quota or limit is full, or a write or flush fails, and two where one
    cannot take another's place.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _WRITE_FAILURE_ERRNOS and error.filename is None:
            error.strerror = f"{_UNSUPPORTED_PREFIX}written ({error.strerror})"
        if (
            error.errno in DISK_FULL_ERRNOS | _WRITE_FAILURE_ERRNOS and error.filename is None
        ) or error.filename2 == str(path):
            error.filename = str(path)
            del error.filename2  # None would be shown
        raise


def to_mmfw_error(error: OSError | MemoryError) -> MmfwError:
    """Return what the system refused as an error that names the file and the next step."""
    if isinstance(error, MemoryError):
        return ResourceError("not enough memory", hint=_MEMORY_HINT)
    where = f"{error.filename}: " if error.filename else ""
    what = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
    by_disk = _OTHER_DISK_HINT if (error.strerror or "").startswith(_UNSUPPORTED_PREFIX) else None
    hint = next((hint for numbers, hint in _ERRNO_HINTS if error.errno in numbers), by_disk)
    if getattr(error, "winerror", None) in _IN_USE_WINERRORS:
        hint = "close the program that has it open, if there is one, and run the same command again"
    if isinstance(error, BlockingIOError) and error.filename:  # see locking.py
        return InUseError(f"{where}{what}")
    kind = ResourceError if error.errno in DISK_FULL_ERRNOS | {errno.ENOMEM} else DataError
    return kind(f"{where}{what}", hint=hint)


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write a file to, which then takes the place of ``path``.

    A reader of ``path`` sees the old file or the complete new one. When the block raises, nothing
    is left of the new one. No other process gets the same name, so of two that write one file at once, the
    slower one wins.
    """
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}.part")
    try:
        with add_path_to_errors(path):
            yield temporary
            rename(temporary, path)
    finally:
        remove(temporary)


def link_or_copy(source: Path, path: Path) -> None:
    """Give the content of ``source`` a second name, which takes the place of what was there.

    A hard link where the file system has them, else a copy. So ``source`` must never be written to in place.
    """
    with atomic_replace(path) as temporary:
        try:
            os.link(os.path.realpath(source), temporary)  # a link to a symbolic link follows its name
        except OSError:  # FAT and some network drives have none, and none leads to another drive
            shutil.copyfile(source, temporary)
            fsync_file(temporary)


def fsync_file(path: Path) -> None:
    """Have the system write a file to the disk now, so that a power cut cannot take it back."""
    with add_path_to_errors(path), path.open("rb+") as file:
        os.fsync(file.fileno())


def free_space(path: Path) -> int | None:
    """Free bytes on the disk that ``path`` is on, or will be on once it exists; None for a missing drive."""
    existing = _nearest_existing_dir(path)
    return None if existing is None else shutil.disk_usage(existing).free


def device_number(path: Path) -> int | None:
    """Return the device number of the disk that ``path`` is on, or will be on; None for a missing drive."""
    existing = _nearest_existing_dir(path)
    return None if existing is None else existing.stat().st_dev


def _nearest_existing_dir(path: Path) -> Path | None:
    return next((parent for parent in (path, *path.parents) if parent.is_dir()), None)


def disk_usage(*folders: Path) -> tuple[int, int]:
    """Return the bytes of all files below folders, and how many of them removing the folders frees.

    A file with several names, by hard links, counts once, and frees nothing while a name elsewhere is left.
    Symbolic links count nothing, and files that disappear meanwhile are skipped.
    """
    files: defaultdict[object, list[os.stat_result]] = defaultdict(list)
    for path in chain.from_iterable(folder.rglob("*") for folder in folders):
        with suppress(OSError):
            if stat.S_ISREG((status := path.lstat()).st_mode):  # some network drives number no files
                files[(status.st_dev, status.st_ino) if status.st_ino else path].append(status)
    freed = sum(names[0].st_size for names in files.values() if len(names) >= names[0].st_nlink)
    return sum(names[0].st_size for names in files.values()), freed


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that is on the disk before it takes its place; a reader sees the old or the new one."""
    with atomic_replace(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as :func:`write_bytes` does."""
    write_bytes(path, json_bytes(value, indent=2))


def json_bytes(value: object, indent: int | None = None) -> bytes:
    """``value`` as JSON in UTF-8, with a line end.

    On Linux a file name may hold bytes that are no UTF-8; only then is everything but ASCII escaped.
    """
    with suppress(UnicodeEncodeError):
        return (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode()
    return (json.dumps(value, indent=indent) + "\n").encode()


def read_tail(path: Path, length: int) -> bytes:
    """Return the last bytes of a file, which may be much larger."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - length))
        return file.read()


def iter_files(folder: Path, excluded_dirs: Collection[Path] = ()) -> Iterator[Path]:
    """Yield all files below a folder, in order, leaving out the folders ``without``.

    Links are followed; one that leads nowhere is no file. Raises OSError where a folder cannot be read.
    """
    seen: set[str] = set()
    for here, folders, files in os.walk(folder, onerror=_raise, followlinks=True):
        folders[:] = sorted(name for name in folders if Path(here, name) not in excluded_dirs)
        real = os.path.realpath(here)
        if real in seen:  # a link to a folder above would never end
            folders.clear()
            continue
        seen.add(real)
        yield from (file for name in sorted(files) if (file := Path(here, name)).is_file())


def _raise(error: OSError) -> NoReturn:
    raise error


def require_no_special_file(path: Path) -> None:
    """Raise OSError where reading ``path`` might never end, as that of a pipe or a device."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "not a file", str(path))


def read_json(path: Path) -> Any:
    """The JSON value in a file; an OSError where it cannot be read, a ValueError where it holds no JSON."""
    require_no_special_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
