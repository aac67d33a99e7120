"""Threads that work for the one that started them, and never outlive it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

#: Called with the number of bytes just done.
AdvanceCallback: TypeAlias = Callable[[int], None]

_POLL_SECONDS = 0.05  # on Windows, Ctrl+C does not interrupt a wait


def ignore_progress(_: object) -> None:
    """Progress for those who do not want any."""


class JobCancelled(BaseException):
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
            raise JobCancelled
        self._advanced.append(amount)

    def report(self, result: T) -> None:
        """Called by a job: this is done. Raises as :meth:`advance`."""
        self.advance(0)
        self._results.append(result)

    def run(
        self, jobs: Sequence[Callable[[], object]], progress: AdvanceCallback
    ) -> Generator[T, None, None]:
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
                    _, running = wait(running, _POLL_SECONDS, FIRST_EXCEPTION)
                    if amount := sum(self._advanced.popleft() for _ in range(len(self._advanced))):
                        progress(amount)
                    while self._results:
                        yield self._results.popleft()
                    for future in futures:
                        if future.done():
                            future.result()
            finally:
                self._stopped = True


def wait_for_result(future: Future[T]) -> T:
    """What a future returns or raises, waited for so that Ctrl+C works meanwhile."""
    while not wait([future], _POLL_SECONDS).done:
        pass
    return future.result()


def partition_by_size(tasks: Iterable[T], max_lists: int, size: Callable[[T], int]) -> list[list[T]]:
    """At most ``count`` lists of about the same size, none of them empty."""
    shares: list[list[T]] = [[] for _ in range(max_lists)]
    sizes = [0] * max_lists
    for task in sorted(tasks, key=lambda task: -size(task)):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(task)
        sizes[smallest] += size(task)
    return [share for share in shares if share]
