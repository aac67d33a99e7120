"""The hashes of many files, made side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event, Lock

from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.manifest import Check

_MOST_WORKERS = 4  # more of them would wait for the disk
_TICK = 0.1


def hash_files(
    files: Mapping[str, Path], progress: Callable[[int], None]
) -> Iterator[tuple[str, str | OSError, Check | None]]:
    """Hash each file, whichever is done first.

    Whenever this ends, by Ctrl+C too, all threads have ended before.

    Args:
        files: any key → the file.
        progress: called with the number of bytes just read, in this thread.

    Yields:
        the key; the hash in hex, or why the file could not be read; the state in which the file was both
        before and after, None when it was changed meanwhile.
    """
    stop = Event()
    lock = Lock()
    read = 0

    def count(amount: int) -> None:
        nonlocal read
        if stop.is_set():
            raise _Stopped
        with lock:
            read += amount

    def tell() -> None:
        nonlocal read
        with lock:
            amount, read = read, 0
        progress(amount)

    def work(key: str, path: Path) -> tuple[str, str | OSError, Check | None]:
        try:
            before = path.stat()
            sha256 = file_digest(path, progress=count).hex()
            check = Check.now(path.stat())
        except OSError as error:
            return key, error, None
        return key, sha256, check if check.is_of(before) else None

    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_WORKERS), "mmfw-hash") as pool:
        try:
            running: set[Future[tuple[str, str | OSError, Check | None]]] = {
                pool.submit(work, key, path) for key, path in files.items()
            }
            while running:
                # On Windows, Ctrl+C does not interrupt a longer wait.
                done, running = wait(running, timeout=_TICK, return_when=FIRST_COMPLETED)
                tell()
                for future in done:
                    yield future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


class _Stopped(Exception):
    """Nobody wants the hash any more."""
