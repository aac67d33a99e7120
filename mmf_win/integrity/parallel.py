"""The hashes of many files, made side by side."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Generic, TypeAlias, TypeVar

from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.manifest import Check

T = TypeVar("T")

Advance: TypeAlias = Callable[[int], None]

Result: TypeAlias = tuple[str, T | OSError, Check | None]

_MOST_WORKERS = 4  # more of them would wait for the disk
# Below, most of the time goes into what only one thread at a time can do in Python.
_SMALL = 1 << 16
_TICK = 0.1  # on Windows, Ctrl+C does not interrupt a longer wait


def hash_files(files: Mapping[str, Path], progress: Advance) -> Iterator[Result[str]]:
    """Hash each file, whichever is done first.

    Whenever this ends, by Ctrl+C too, all threads have ended before.

    Args:
        files: any key → the file; whoever knows their sizes had better put the largest first.
        progress: called with the number of bytes just read, in this thread.

    Yields:
        the key; the hash in hex, or why the file could not be read; the state in which the file was both
        before and after, None when it was changed meanwhile.
    """

    def sha256(path: Path, advance: Advance) -> str:
        return file_digest(path, progress=advance).hex()

    return read_files(files, sha256, progress)


def read_files(
    files: Mapping[str, Path], read: Callable[[Path, Advance], T], progress: Advance
) -> Iterator[Result[T]]:
    """Let threads read files, as :func:`hash_files` does.

    Args:
        files: any key → the file.
        read: is called in a thread, with a file and what it is to call with the number of bytes just read.
        progress: called with the number of bytes just read, in this thread.

    Yields:
        the key; what ``read`` returned, or the error of the system; the state, as in :func:`hash_files`.
    """
    crew = _Crew(files, read)
    count = min(os.cpu_count() or 1, _MOST_WORKERS, len(files))
    threads = [Thread(target=crew.work, name="mmfw-hash", daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        finished = not files
        while not finished:
            finished = crew.finished.wait(_TICK)
            progress(crew.advanced())
            yield from crew.results()
    finally:
        crew.stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


class _Stopped(Exception):
    """Nobody wants the rest any more."""


class _Crew(Generic[T]):
    """What the threads share: what is to be read, and what has been."""

    def __init__(self, files: Mapping[str, Path], read: Callable[[Path, Advance], T]) -> None:
        self._files, self._read = iter(files.items()), read
        self._left = len(files)
        self._lock = Lock()
        self._advanced = 0
        self._results: deque[Result[T]] = deque()
        self._small_ones_are_taken = False
        self._error: BaseException | None = None
        self.stop, self.finished = Event(), Event()

    def results(self) -> Iterator[Result[T]]:
        """What was read since the last call.

        Raises:
            BaseException: what a thread ended by.
        """
        if self._error is not None:
            raise self._error
        while self._results:
            yield self._results.popleft()

    def advanced(self) -> int:
        """Bytes since the last call."""
        with self._lock:
            amount, self._advanced = self._advanced, 0
        return amount

    def work(self) -> None:
        """Read one file after the other, until all are taken or another thread is at the small ones, too."""
        small_ones_are_mine = False
        try:
            while not self.stop.is_set():
                with self._lock:
                    key, path = next(self._files, (None, None))
                if key is None or path is None:
                    return
                size, result, check = self._looked_at(path)
                self._results.append((key, result, check))
                with self._lock:
                    self._left -= 1
                    if not self._left:
                        self.finished.set()
                    if size < _SMALL and not small_ones_are_mine:
                        if self._small_ones_are_taken:
                            return
                        self._small_ones_are_taken = small_ones_are_mine = True
        except _Stopped:
            pass
        except BaseException as error:
            self._error = error
            self.finished.set()

    def _looked_at(self, path: Path) -> tuple[int, T | OSError, Check | None]:
        """The file's size, what was read, and the state in which that was so."""
        try:
            before = path.stat()
            result = self._read(path, self._advance)
            check = Check.now(path.stat())
        except OSError as error:
            return 0, error, None
        return before.st_size, result, check if check.is_of(before) else None

    def _advance(self, amount: int) -> None:
        if self.stop.is_set():
            raise _Stopped
        with self._lock:
            self._advanced += amount
