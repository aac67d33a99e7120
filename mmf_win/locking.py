"""A lock that the system frees when its holder dies, however that happens."""

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
    _Overlapped = ctypes.c_size_t * 5  # Windows' OVERLAPPED for the file's beginning: nothing but zeros
    _IN_USE_CODES = {33, 997}
    _UNSUPPORTED_CODES = {1, 50}  # of a network drive: no such function, not supported
else:
    import fcntl

    _UNSUPPORTED_CODES = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}

_POLL_SECONDS = 0.05
_PROBE_GRACE_SECONDS = 1.0  # seconds


@contextmanager
def file_lock(
    path: Path,
    timeout: float = 0.0,
    on_wait: Callable[[], None] = lambda: None,
    *,
    shared: bool = False,
    in_use_error: Exception | None = None,
) -> Iterator[int]:
    """Hold the lock that is the file ``path``, which is made and stays.

    The block gets the file's descriptor: on Linux and macOS a process that inherits it holds the lock, too.

    Args:
        patience: seconds to try for; infinity waits for as long as it takes.
        on_wait: called once, when another process holds it and there is patience left.
        shared: take a share of it: any number may have one while nobody holds the lock itself. Without a
            file, and where none can be made, the block gets -1, and nobody is kept away.
        refused: what to raise when another process holds it.

    Raises:
        BlockingIOError: another process holds it, and there is no ``refused``.
        OSError: the file cannot be opened or locked; ``ENOLCK``: its file system has no locks.
    """
    deadline = time.monotonic() + timeout
    waiting = False
    file = _open_lock_file(path, shared=shared)
    if file is None:
        yield -1
        return
    with file:
        while not _try_acquire(path, file.fileno(), shared=shared):
            # Somebody who asks whether it is held has a share of it, but only for a moment.
            late = time.monotonic() - deadline
            if late >= _PROBE_GRACE_SECONDS or (late >= 0 and is_locked(path)):
                raise in_use_error or BlockingIOError(
                    errno.EAGAIN, "another process holds this lock", str(path)
                )
            if not waiting and time.monotonic() < deadline:
                waiting = True
                on_wait()
            time.sleep(_POLL_SECONDS)
        try:
            yield file.fileno()
        finally:
            _release(file.fileno())


def _open_lock_file(path: Path, *, shared: bool) -> BinaryIO | None:
    """Open a lock's file, which is made; None where there is none to share, and none can be made."""
    try:
        # NFS shares a lock only through a descriptor that reads, and holds one only through one that writes.
        return path.open("a+b")
    except OSError as error:
        if not shared or error.errno not in PERMISSION_ERRNOS | {errno.ENOENT}:
            raise
    with suppress(FileNotFoundError, PermissionError):
        return path.open("rb")
    return None


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock at this moment. Any number may ask at once.

    Raises OSError where the file cannot be read; ``ENOLCK``: its file system has no locks.
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
    """Take the lock, or a share of it, which others may have too; False where that is refused."""
    none = OSError(errno.ENOLCK, "this file system has no locks", str(path))
    if sys.platform == "win32":
        flags = _FAIL_IMMEDIATELY | (0 if shared else _EXCLUSIVE_LOCK)
        if _kernel32.LockFileEx(msvcrt.get_osfhandle(descriptor), flags, 0, 1, 0, _Overlapped()):
            return True
        code = ctypes.get_last_error()
        if code not in _IN_USE_CODES:
            raise none if code in _UNSUPPORTED_CODES else ctypes.WinError(code)
        return False
    else:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            refused = OSError(error.errno, f"it cannot be locked ({error.strerror})", str(path))
            raise none if error.errno in _UNSUPPORTED_CODES else refused from None
        return True


def _release(descriptor: int) -> None:
    """Give the lock back; on Windows, closing the file would do so only some time later."""
    if sys.platform == "win32":
        _kernel32.UnlockFileEx(msvcrt.get_osfhandle(descriptor), 0, 1, 0, _Overlapped())
