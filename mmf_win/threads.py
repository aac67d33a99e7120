"""Threads that never outlive the call that started them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

#: Called with the number of bytes that were just processed.
AdvanceCallback: TypeAlias = Callable[[int], None]

_POLL_SECONDS = 0.05  # on Windows, Ctrl+C does not interrupt a wait


def ignore_progress(_: object) -> None:
    """Do nothing; for callers without progress."""


class JobCancelled(BaseException):
    """Cancellation of a job; not an Exception, so that no handler treats it as an error."""


class ThreadGroup(Generic[T]):
    """Jobs in threads that report progress and results to the thread that started them."""

    def __init__(self) -> None:
        self._stopped = False
        self._advanced: deque[int] = deque()
        self._results: deque[T] = deque()

    def advance(self, amount: int) -> None:
        """Report ``amount`` processed bytes; a job calls this at least every second, for Ctrl+C to work.

        Raises:
            JobCancelled: The job is to end.
        """
        if self._stopped:
            raise JobCancelled
        self._advanced.append(amount)

    def report(self, result: T) -> None:
        """Report a result from a job; raise JobCancelled if the job is to end."""
        self.advance(0)
        self._results.append(result)

    def run(self, jobs: Sequence[Callable[[], object]], progress: AdvanceCallback) -> Generator[T, None, None]:
        """Run each job in a thread and yield the reported results.

        All threads have ended when this generator ends: because all jobs are done, a job failed, the caller
        stopped iterating or the user pressed Ctrl+C. The first error of a job stops the others and is raised
        here.

        Args:
            jobs: Functions to run.
            progress: Called with each amount of processed bytes.

        Yields:
            The reported results, in the order of their reports.
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
    """Wait for a future so that Ctrl+C works, and return its result or raise its error."""
    while not wait([future], _POLL_SECONDS).done:
        pass
    return future.result()


def partition_by_size(tasks: Iterable[T], max_lists: int, size: Callable[[T], int]) -> list[list[T]]:
    """Distribute tasks over at most ``max_lists`` non-empty lists of about the same total size."""
    groups: list[list[T]] = [[] for _ in range(max_lists)]
    sizes = [0] * max_lists
    for task in sorted(tasks, key=lambda task: -size(task)):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(task)
        sizes[smallest] += size(task)
    return [group for group in groups if group]
