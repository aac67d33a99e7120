"""Where the time of training goes, as a worker measures it, and how many DataLoader workers would help."""

from __future__ import annotations

from dataclasses import dataclass

_SIGNIFICANT_WAIT_SHARE = 0.2  # the share of the time from which on waiting for data is worth a word
_MIN_WAIT_SECONDS = 0.05  # seconds an update
_MAX_IMPROVED_SHARE = 0.9  # with more workers an update has to take at most this share of its time
_NEAR_BEST_FACTOR = 1.05  # fewer workers that are at most so much slower than the best number are preferred


@dataclass(frozen=True)
class DataWaitStats:
    """How long updates wait for their rows; all times are seconds an update.

    Attributes:
        waited: from asking for a batch to having it.
        update: the whole update, the wait included, without validation and checkpoints.
        workers: processes of the DataLoader; with 0, the process that trains makes the batches.
        threads: processors that the rest of an update keeps busy; 1 where a GPU computes.
        processors: what this process and its workers may use.
        making: how long this process made the batch, or got it from workers: more than ``waited`` where a GPU
            was at work meanwhile.
        cpu: how much of ``making`` a processor worked; None where workers did.
    """

    waited: float
    update: float
    workers: int
    threads: int
    processors: int
    making: float
    cpu: float | None = None

    @property
    def share(self) -> float:
        """Of the time, from 0 to 1."""
        return self.waited / self.update if self.update else 0.0

    @property
    def is_significant(self) -> bool:
        """Whether it is worth a word."""
        return self.share >= _SIGNIFICANT_WAIT_SHARE

    @property
    def is_io_bound(self) -> bool:
        """Whether batches mostly wait themselves, as for a disk, while no processor works on them.

        Half would not tell it from a busy machine, on which two programs share a processor.
        """
        return self.cpu is not None and self.cpu < self.making / 3

    def recommend_workers(self) -> int | None:
        """How many workers would make updates at least a tenth faster; None where no number would.

        An update takes as long as the longest of: its computing, its batch divided among the workers, and
        all work of both divided among the processors.
        """
        if self.waited < _MIN_WAIT_SECONDS:  # to get a batch from another process would take about as long
            return None
        # Those that hinder the threads of a training on a few processors cost more than they bring.
        shared = self.processors // 2 if self.processors > 2 else 0
        spare = max(self.processors - self.threads, shared)
        most = self.processors if self.is_io_bound else spare
        computing = self.update - self.waited
        making = self.making if not self.workers else self.workers * self.update
        work = (making if self.cpu is None else self.cpu) + computing * min(self.threads, self.processors)
        expected = {
            count: max(computing, making / count, work / self.processors)
            for count in range(self.workers + 1, most + 1)
        }
        best = min(expected.values(), default=self.update)
        if best > _MAX_IMPROVED_SHARE * self.update:
            return None
        return next(count for count, seconds in expected.items() if seconds <= _NEAR_BEST_FACTOR * best)

    def __str__(self) -> str:
        return f"the model waits for data {100 * self.share:.0f} % of the time"
