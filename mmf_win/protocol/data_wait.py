"""Measured training time, and the number of DataLoader workers that would help."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmf_win.records import stored_as

_SIGNIFICANT_WAIT_SHARE = 0.2  # report waiting for data from this share of the time on
_MIN_WAIT_SECONDS = 0.05  # per update
_MAX_IMPROVED_SHARE = 0.9  # recommend more workers only if an update takes at most this share of its time
_NEAR_BEST_FACTOR = 1.05  # prefer fewer workers if updates are slower by at most this factor


@dataclass(frozen=True)
class DataWaitStats:
    """Time that updates wait for their rows; all times are in seconds per update.

    Attributes:
        wait_s: From the request for a batch until it is available.
        update_s: The update including the wait, without validation and checkpoints.
        workers: Processes of the DataLoader; with 0, the training process makes the batches.
        threads: CPUs that the rest of an update keeps busy; 1 if a GPU computes.
        processors: CPUs that this process and its workers may use.
        batch_s: Time in which this process made the batch or received it from workers; more than ``wait_s`` if
            a GPU was computing at the same time.
        batch_cpu_s: CPU time of ``batch_s``; None if workers made the batch.
    """

    wait_s: float = field(metadata=stored_as("waited"))
    update_s: float = field(metadata=stored_as("update"))
    workers: int
    threads: int
    processors: int
    batch_s: float = field(metadata=stored_as("making"))
    batch_cpu_s: float | None = field(default=None, metadata=stored_as("cpu"))

    @property
    def share(self) -> float:
        """Share of the time spent waiting, from 0 to 1."""
        return self.wait_s / self.update_s if self.update_s else 0.0

    @property
    def is_significant(self) -> bool:
        """True if the wait is long enough to be reported."""
        return self.share >= _SIGNIFICANT_WAIT_SHARE

    @property
    def is_io_bound(self) -> bool:
        """True if making batches mostly waits, for example for a disk, rather than using a CPU.

        The limit is a third, since half would also match two programs that share a CPU.
        """
        return self.batch_cpu_s is not None and self.batch_cpu_s < self.batch_s / 3

    def recommend_workers(self) -> int | None:
        """Return the number of workers that would make updates at least a tenth faster.

        An update takes as long as the longest of: its computation, the making of its batch divided by the
        workers, and the total work divided by the CPUs.

        Returns:
            The number of workers, or None if no number would help.
        """
        if self.wait_s < _MIN_WAIT_SECONDS:  # receiving a batch from another process takes about as long
            return None
        # On a few CPUs, workers would slow down the threads of the training more than they help.
        shared = self.processors // 2 if self.processors > 2 else 0
        spare = max(self.processors - self.threads, shared)
        max_workers = self.processors if self.is_io_bound else spare
        computing = self.update_s - self.wait_s
        batch_s = self.workers * self.update_s if self.workers else self.batch_s
        batch_cpu_s = batch_s if self.batch_cpu_s is None else self.batch_cpu_s
        work = batch_cpu_s + computing * min(self.threads, self.processors)
        expected = {
            count: max(computing, batch_s / count, work / self.processors)
            for count in range(self.workers + 1, max_workers + 1)
        }
        best = min(expected.values(), default=self.update_s)
        if best > _MAX_IMPROVED_SHARE * self.update_s:
            return None
        return next(count for count, seconds in expected.items() if seconds <= _NEAR_BEST_FACTOR * best)

    def __str__(self) -> str:
        return f"the model waits for data {100 * self.share:.0f} % of the time"
