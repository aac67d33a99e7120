"""A lock that the system frees when its holder dies, however that happens."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_PAUSE = 0.05


@contextmanager
def locked(path: Path, patience: float = 0.0, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock that is the file ``path``, which is made and stays.

    Args:
        path: the file.
        patience: seconds to try for; infinity waits for as long as it takes.
        on_wait: called once, when another process holds it and there is patience left.

    Raises:
        BlockingIOError: another process holds it.
    """
    deadline = time.monotonic() + patience
    waiting = False
    with path.open("ab") as file:
        while not _acquired(file.fileno()):
            if time.monotonic() >= deadline:
                raise BlockingIOError(errno.EAGAIN, "another process holds this lock", str(path))
            if not waiting:
                waiting = True
                on_wait()
            time.sleep(_PAUSE)
        try:
            yield
        finally:
            if sys.platform == "win32":
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)


def _acquired(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock at this moment."""
    if not path.exists():
        return False
    try:
        with locked(path):
            return False
    except BlockingIOError:
        return True
