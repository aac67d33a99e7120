"""Threads that work for the one that started them, and never outlive it."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

Advance: TypeAlias = Callable[[int], None]
"""Called with the number of bytes just done."""

_TICK = 0.05  # on Windows, Ctrl+C does not interrupt a wait
_MOST_WORKERS = 4  # more of them would wait for the disk, and each needs memory


def ignore(_: int) -> None:
    """Progress for those who do not want any."""


class Stopped(BaseException):
    """Ends a job whose results nobody wants; no Exception, so that no handler takes it for an error."""


class ThreadGroup(Generic[T]):
    """Jobs in threads of their own, which tell the thread that started them what they have done."""

    def __init__(self) -> None:
        self._stopped = False
        self._advanced: deque[int] = deque()
        self._results: deque[T] = deque()

    def advance(self, amount: int) -> None:
        """Called by a job often enough for Ctrl+C to work within a second: so many bytes more are done.

        Raises Stopped where the job is to end.
        """
        if self._stopped:
            raise Stopped
        self._advanced.append(amount)

    def report(self, result: T) -> None:
        """Called by a job: this is done. Raises as :meth:`advance`."""
        self.advance(0)
        self._results.append(result)

    def run(self, jobs: Sequence[Callable[[], object]], progress: Advance) -> Generator[T, None, None]:
        """Run each job in a thread of its own and yield what they report.

        Whenever this ends – all is done, a job failed, the caller wants no more, or the user pressed Ctrl+C –
        all threads have ended before.

        Raises the first that a job raised; the other jobs are stopped then.
        """
        with ThreadPoolExecutor(len(jobs) or 1, "mmfw-job") as pool:
            try:
                futures = [pool.submit(job) for job in jobs]
                running: Iterable[Future[object]] = futures
                while running:
                    _, running = wait(running, _TICK, FIRST_EXCEPTION)
                    if amount := sum(self._advanced.popleft() for _ in range(len(self._advanced))):
                        progress(amount)
                    while self._results:
                        yield self._results.popleft()
                    for future in futures:
                        if future.done():
                            future.result()
            finally:
                self._stopped = True


def result_of(future: Future[T]) -> T:
    """What a future returns or raises, waited for so that Ctrl+C works meanwhile."""
    while not wait([future], _TICK).done:
        pass
    return future.result()


def worker_count() -> int:
    """How many threads are worth starting on this machine, as far as this process may use it."""
    return min(processors(), _MOST_WORKERS)


def processors(root: Path = Path("/")) -> int:
    """Return how many processors this process may use: those of its affinity, and no more than its quota.

    Args:
        root: the folder that holds ``proc`` and ``sys``.
    """
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    usable = getattr(os, "process_cpu_count", lambda: usable)() or 1  # Python 3.13: the user may set it
    return math.ceil(min(usable, cpu_quota(root)))


def cpu_quota(root: Path = Path("/")) -> float:
    """Return how many processors' time the control groups of this process allow; infinity without a limit.

    The smallest quota of its groups and those above them counts
    (https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/scheduler/sched-bwc.html).
    """
    quotas = [math.inf]
    with suppress(OSError, ValueError):  # only Linux has this file
        for line in os.fsdecode((root / "proc/self/cgroup").read_bytes()).splitlines():
            _, controllers, path = line.split(":", 2)
            group = Path(root, "sys/fs/cgroup", "cpu" if controllers else "", path[1:])
            if not controllers or "cpu" in controllers.split(","):
                # In a container, the group itself may not be visible, but the root is.
                quotas += map(_quota_of, (group, *group.parents))
    return min(quotas)


def _quota_of(group: Path) -> float:
    """Return the quota of one control group of version 2 or 1, in processors."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        with suppress(OSError, ValueError, ZeroDivisionError):  # without a limit, the quota is "max" or -1
            quota, period = map(int, b" ".join((group / name).read_bytes() for name in names).split())
            return quota / period if quota > 0 else math.inf
    return math.inf


def limit_threads(processes: int, root: Path = Path("/")) -> None:
    """Have libraries of each process start no more threads than its share of what this process may use.

    A single process needs to be told only of a CPU quota, which libraries do not read themselves.
    """
    if processes > 1 or cpu_quota(root) < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors(root) // processes)))


def share_out(tasks: Iterable[T], count: int, size: Callable[[T], int]) -> list[list[T]]:
    """At most ``count`` lists of about the same size, none of them empty."""
    shares: list[list[T]] = [[] for _ in range(count)]
    sizes = [0] * count
    for task in sorted(tasks, key=lambda task: -size(task)):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(task)
        sizes[smallest] += size(task)
    return [share for share in shares if share]
