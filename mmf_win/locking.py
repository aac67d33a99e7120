"""File locks, which the system releases when their process dies."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mmf_win.errors import PERMISSION_ERRNOS

if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    # https://learn.microsoft.com/windows/win32/api/fileapi/nf-fileapi-lockfileex
    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel32.LockFileEx.argtypes = [wintypes.HANDLE, *[wintypes.DWORD] * 4, wintypes.LPVOID]
    _kernel32.UnlockFileEx.argtypes = [wintypes.HANDLE, *[wintypes.DWORD] * 3, wintypes.LPVOID]
    _FAIL_IMMEDIATELY, _EXCLUSIVE_LOCK = 1, 2
    _Overlapped = ctypes.c_size_t * 5  # the structure OVERLAPPED; all zeros refer to the start of the file
    _IN_USE_CODES = {33, 997}
    _UNSUPPORTED_CODES = {1, 50}  # from network drives: ERROR_INVALID_FUNCTION, ERROR_NOT_SUPPORTED
else:
    import fcntl

    _UNSUPPORTED_CODES = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}

_POLL_SECONDS = 0.05
_PROBE_GRACE_SECONDS = 1.0


@contextmanager
def file_lock(
    path: Path,
    timeout: float = 0.0,
    on_wait: Callable[[], None] = lambda: None,
    *,
    shared: bool = False,
    in_use_error: Exception | None = None,
) -> Iterator[int]:
    """Hold a lock on the file ``path`` while the block runs.

    The file is created and never removed. On Linux and macOS, a process that inherits the file descriptor
    holds the lock, too.

    Args:
        path: The lock file.
        timeout: Seconds to wait for the lock; may be infinity.
        on_wait: Called once if another process holds the lock and ``timeout`` is not over.
        shared: Take a shared lock: any number of processes may hold it while none holds the exclusive one. If
            the file neither exists nor can be created, nothing is locked.
        in_use_error: The error to raise if another process holds the lock.

    Yields:
        The descriptor of the lock file, or -1 if nothing is locked.

    Raises:
        BlockingIOError: Another process holds the lock, and ``in_use_error`` is None.
        OSError: The file cannot be opened or locked (``ENOLCK``: the file system has no locks).
    """
    deadline = time.monotonic() + timeout
    has_waited = False
    file = _open_lock_file(path, shared=shared)
    if file is None:
        yield -1
        return
    with file:
        while not _try_acquire(path, file.fileno(), shared=shared):
            # is_locked() in another process holds a shared lock, but only for a moment.
            overdue = time.monotonic() - deadline
            if overdue >= _PROBE_GRACE_SECONDS or (overdue >= 0 and is_locked(path)):
                raise in_use_error or BlockingIOError(errno.EAGAIN, "locked by another process", str(path))
            if not has_waited and time.monotonic() < deadline:
                has_waited = True
                on_wait()
            time.sleep(_POLL_SECONDS)
        try:
            yield file.fileno()
        finally:
            _release(file.fileno())


def _open_lock_file(path: Path, *, shared: bool) -> BinaryIO | None:
    """Open or create a lock file; return None for a shared lock whose file cannot be created."""
    try:
        # NFS needs a readable descriptor for a shared lock and a writable one for an exclusive lock.
        return path.open("a+b")
    except OSError as error:
        if not shared or error.errno not in PERMISSION_ERRNOS | {errno.ENOENT}:
            raise
    with suppress(FileNotFoundError, PermissionError):
        return path.open("rb")
    return None


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock at this moment.

    Any number of processes may ask at once.

    Returns:
        True if the lock is held; False also if the file does not exist.

    Raises:
        OSError: The file cannot be read or locked (``ENOLCK``: the file system has no locks).
    """
    try:
        with path.open("rb") as file:
            if not _try_acquire(path, file.fileno(), shared=True):
                return True
            _release(file.fileno())
            return False
    except FileNotFoundError:
        return False


def _try_acquire(path: Path, descriptor: int, *, shared: bool = False) -> bool:
    """Acquire an exclusive or shared lock without waiting; return False if another process holds it."""
    unsupported = OSError(errno.ENOLCK, "the file system does not support locks", str(path))
    if sys.platform == "win32":
        flags = _FAIL_IMMEDIATELY | (0 if shared else _EXCLUSIVE_LOCK)
        if _kernel32.LockFileEx(msvcrt.get_osfhandle(descriptor), flags, 0, 1, 0, _Overlapped()):
            return True
        code = ctypes.get_last_error()
        if code not in _IN_USE_CODES:
            raise unsupported if code in _UNSUPPORTED_CODES else ctypes.WinError(code)
        return False
    else:  # noqa: RET505 - mypy needs it to skip the branch of the other system
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            failure = OSError(error.errno, f"cannot be locked ({error.strerror})", str(path))
            raise unsupported if error.errno in _UNSUPPORTED_CODES else failure from None
        return True


def _release(descriptor: int) -> None:
    """Release the lock immediately; on Windows, closing the file releases it only after a delay."""
    if sys.platform == "win32":
        _kernel32.UnlockFileEx(msvcrt.get_osfhandle(descriptor), 0, 1, 0, _Overlapped())
