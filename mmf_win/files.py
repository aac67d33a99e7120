"""Atomic file operations, and JSON files."""

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

#: Maximum number of attempts to change a file that another program may have open.
MAX_TRIES = 20 if sys.platform == "win32" else 1
#: Seconds between two attempts.
RETRY_PAUSE_SECONDS = 0.1
_TRANSIENT_ERRNOS = {errno.EACCES, errno.EPERM, errno.ENOTEMPTY}
#: Error numbers of a full disk, an exceeded quota or a file size limit.
DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_WRITE_ERRNOS = {errno.EBADF, errno.EINVAL, errno.EIO}
#: Start of messages, also of locking.py, about operations that a disk does not support.
_UNSUPPORTED_PREFIX = "cannot be "
_MEMORY_HINT = "close other programs or raise the memory limit, and run the same command again"
_OTHER_DISK_HINT = "use another disk: --save-dir or MMF_SAVE_DIR for runs, --data-dir or MMF_DATA_DIR for data"
_ERRNO_HINTS = (
    ({errno.EFBIG}, "check the file size limits of the shell (`ulimit -f`) and of the file system"),
    ({errno.ENOMEM}, _MEMORY_HINT),
    (DISK_FULL_ERRNOS, "free some space and run the same command again"),
    ({errno.EIO}, "check the disk or network drive, and run the same command again"),
    ({errno.ENOLCK}, _OTHER_DISK_HINT),
    ({errno.EBUSY}, "if the file is a mount point, mount its parent folder instead"),
    ({errno.EEXIST}, "remove the existing file or, if it is a link, mount the disk that it points to"),
    (PERMISSION_ERRNOS, "check the permissions, or choose another folder"),
)
# https://learn.microsoft.com/windows/win32/debug/system-error-codes--0-499-
_IN_USE_WINERRORS = {5, 32, 33}  # access denied, a sharing violation, a lock violation


def rename(old: Path, new: Path) -> None:
    """Rename a file, replacing an existing one atomically, or rename a folder to a free name.

    Raises:
        OSError: The rename failed; on Windows also if ``new`` stays open in another program.
    """
    _retry_change(lambda: old.replace(new))


def remove(path: Path) -> None:
    """Remove a file if it exists; on Windows, raise OSError if it stays open in another program."""
    _retry_change(lambda: path.unlink(missing_ok=True))


def remove_tree(folder: Path) -> None:
    """Remove a folder with its contents; after an OSError, the remaining files can be removed later."""
    _retry_change(lambda: shutil.rmtree(folder))


def _retry_change(change: Callable[[], object]) -> None:
    """Make a change that Windows may refuse while, for example, a virus scanner has a new file open.

    Retries take two seconds on Windows. A folder may also contain a file that was removed while it was open.

    Raises:
        OSError: The change failed, also when it was retried.
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
    """Add the path to OSErrors of writing that lack it.

    The system gives no path if a disk, quota or limit is full or a write or flush fails, and two paths if a
    file cannot replace another one.

    Raises:
        OSError: The error of the block, with the path.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _WRITE_ERRNOS and error.filename is None:
            error.strerror = f"{_UNSUPPORTED_PREFIX}written ({error.strerror})"
        if (error.errno in DISK_FULL_ERRNOS | _WRITE_ERRNOS and error.filename is None) or error.filename2 == str(path):
            error.filename = str(path)
            del error.filename2  # None would be shown
        raise


def to_mmfw_error(error: OSError | MemoryError) -> MmfwError:
    """Convert an error of the system to an error with the path and the next step."""
    if isinstance(error, MemoryError):
        return ResourceError("not enough memory", hint=_MEMORY_HINT)
    location = f"{error.filename}: " if error.filename else ""
    reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
    default_hint = _OTHER_DISK_HINT if (error.strerror or "").startswith(_UNSUPPORTED_PREFIX) else None
    hint = next((hint for numbers, hint in _ERRNO_HINTS if error.errno in numbers), default_hint)
    if getattr(error, "winerror", None) in _IN_USE_WINERRORS:
        hint = "close any program that has the file open, and run the same command again"
    if isinstance(error, BlockingIOError) and error.filename:  # raised by locking.py
        return InUseError(f"{location}{reason}")
    error_class = ResourceError if error.errno in DISK_FULL_ERRNOS | {errno.ENOMEM} else DataError
    return error_class(f"{location}{reason}", hint=hint)


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Write a file next to ``path``, which then replaces ``path``.

    A reader of ``path`` sees the old file or the complete new one. If the block raises, the new file is
    removed. Each process gets its own temporary name: if two write the same file at once, the slower one
    wins.

    Yields:
        The path of the temporary file.
    """
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}.part")
    try:
        with add_path_to_errors(path):
            yield temporary
            rename(temporary, path)
    finally:
        remove(temporary)


def link_or_copy(source: Path, path: Path) -> None:
    """Make ``path`` a hard link to ``source``, or a copy if links are not supported.

    An existing file is replaced. Because of the link, ``source`` must never be modified in place.
    """
    with atomic_replace(path) as temporary:
        try:
            os.link(os.path.realpath(source), temporary)  # not a link to a symbolic link
        except OSError:  # FAT and some network drives have no links, and a link cannot cross drives
            shutil.copyfile(source, temporary)
            fsync_file(temporary)


def fsync_file(path: Path) -> None:
    """Write a file to the disk immediately, so that it survives a power failure."""
    with add_path_to_errors(path), path.open("rb+") as file:
        os.fsync(file.fileno())


def free_space(path: Path) -> int | None:
    """Return the free bytes on the (future) disk of ``path``, or None if the drive is missing."""
    existing = _nearest_existing_dir(path)
    return None if existing is None else shutil.disk_usage(existing).free


def device_number(path: Path) -> int | None:
    """Return the device number of the (future) disk of ``path``, or None if the drive is missing."""
    existing = _nearest_existing_dir(path)
    return None if existing is None else existing.stat().st_dev


def _nearest_existing_dir(path: Path) -> Path | None:
    return next((parent for parent in (path, *path.parents) if parent.is_dir()), None)


def disk_usage(*folders: Path) -> tuple[int, int]:
    """Return the total size of all files in folders, and the size that removing the folders frees.

    A file with several hard links counts once, and frees nothing while a link remains elsewhere. Symbolic
    links do not count, and files that disappear during the call are skipped.

    Returns:
        Both sizes in bytes.
    """
    files: defaultdict[object, list[os.stat_result]] = defaultdict(list)
    for path in chain.from_iterable(folder.rglob("*") for folder in folders):
        with suppress(OSError):
            if stat.S_ISREG((status := path.lstat()).st_mode):  # some network drives number no files
                files[(status.st_dev, status.st_ino) if status.st_ino else path].append(status)
    freed = sum(links[0].st_size for links in files.values() if len(links) >= links[0].st_nlink)
    return sum(links[0].st_size for links in files.values()), freed


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically; it is on the disk before it replaces an existing one."""
    with atomic_replace(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as JSON by :func:`write_bytes`."""
    write_bytes(path, json_bytes(value, indent=2))


def json_bytes(value: object, indent: int | None = None) -> bytes:
    """Return ``value`` as JSON in UTF-8 with a line end.

    On Linux, a file name may contain bytes that are not UTF-8; only then is the output ASCII with escapes.
    """
    with suppress(UnicodeEncodeError):
        return (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode()
    return (json.dumps(value, indent=indent) + "\n").encode()


def read_tail(path: Path, length: int) -> bytes:
    """Return the last ``length`` bytes of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - length))
        return file.read()


def iter_files(folder: Path, excluded_dirs: Collection[Path] = ()) -> Iterator[Path]:
    """Yield all files below a folder, in each folder first its files and then those of its subfolders.

    Files and subfolders are sorted by name. Links are followed, but each folder is read only once; broken links
    are skipped.

    Args:
        folder: Folder to search.
        excluded_dirs: Folders that are skipped with everything below them.

    Yields:
        The path of each file, which begins with ``folder``.

    Raises:
        OSError: A folder cannot be read.
    """
    visited: set[str] = set()
    for directory, folders, files in os.walk(folder, onerror=_raise, followlinks=True):
        folders[:] = sorted(name for name in folders if Path(directory, name) not in excluded_dirs)
        real_path = os.path.realpath(directory)
        if real_path in visited:  # a link to a parent folder would recurse endlessly
            folders.clear()
            continue
        visited.add(real_path)
        yield from (file for name in sorted(files) if (file := Path(directory, name)).is_file())


def _raise(error: OSError) -> NoReturn:
    raise error


def require_no_special_file(path: Path) -> None:
    """Raise OSError if ``path`` is a pipe or device, which may block a reader indefinitely."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "not a file", str(path))


def read_json(path: Path) -> Any:
    """Return the JSON value in a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It does not contain JSON.
    """
    require_no_special_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
