"""Threads that extract members side by side, and report to the one that started them."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from threading import Event, Lock, Thread
from typing import TypeVar

from mmf_win.archives.base import Advance, Extracted

_Job = TypeVar("_Job")

_TICK = 0.05
_MOST_WORKERS = 4  # more of them would wait for the disk, and each needs memory


class Crew:
    """What the threads share: whether to go on, and what they have done."""

    def __init__(self) -> None:
        self._stop = Event()
        self._finished = Event()
        self._lock = Lock()
        self._done: deque[Extracted] = deque()
        self._errors: deque[BaseException] = deque()
        self._advanced = 0
        self._running = 0

    @property
    def stopped(self) -> bool:
        """Whether nobody wants any more; looked at often enough for Ctrl+C to work within a second."""
        return self._stop.is_set()

    def report(self, extracted: Extracted) -> None:
        """A member is written and verified."""
        self._done.append(extracted)

    def advance(self, amount: int) -> None:
        """So many bytes more are written."""
        with self._lock:
            self._advanced += amount

    def work(
        self, jobs: Sequence[Callable[[Crew], None]], progress: Advance
    ) -> Generator[Extracted, None, None]:
        """Run each job in a thread of its own and yield what they report.

        Whenever this ends – all is done, a job failed, the caller wants no more, or the user pressed Ctrl+C –
        all threads have ended before.

        Raises:
            BaseException: the first that a job raised; the other jobs are stopped then.
        """
        self._running = len(jobs)
        threads = [Thread(target=self._do, args=(job,), name="mmfw-extract", daemon=True) for job in jobs]
        try:
            for thread in threads:
                thread.start()
            last = False
            while not last:
                last = self._finished.wait(_TICK)
                yield from self._news(progress)
                if self._errors:
                    raise self._errors[0]
        finally:
            self._stop.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def _news(self, progress: Advance) -> Iterator[Extracted]:
        with self._lock:
            amount, self._advanced = self._advanced, 0
        if amount:
            progress(amount)
        while self._done:
            yield self._done.popleft()

    def _do(self, job: Callable[[Crew], None]) -> None:
        try:
            job(self)
        except BaseException as error:
            self._errors.append(error)
            self._stop.set()
        with self._lock:
            self._running -= 1
            if self._running == 0 or self._errors:
                self._finished.set()


def share_out(jobs: Iterable[_Job], count: int, size: Callable[[_Job], int]) -> list[list[_Job]]:
    """At most ``count`` lists of about the same size, none of them empty."""
    shares: list[list[_Job]] = [[] for _ in range(count)]
    sizes = [0] * count
    for job in sorted(jobs, key=lambda job: -size(job)):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(job)
        sizes[smallest] += size(job)
    return [share for share in shares if share]


def worker_count() -> int:
    """How many threads are worth starting on this machine, as far as this process may use it."""
    return min(_usable_cpus(), _MOST_WORKERS)


def _usable_cpus() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
