"""Where the time of training goes, as a worker measures it, and how many DataLoader workers would help."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from mmf_win.files import read_json, write_json
from mmf_win.protocol import known_fields

MUCH_WAITING = 0.2
"""The share of the time from which on waiting for data is worth a word."""

_LEAST_WAITING = 0.05  # seconds an update
_WORTH = 0.9  # with more workers an update has to take at most this share of its time
_AS_GOOD = 1.05  # fewer workers that are at most so much slower than the best number are preferred


@dataclass(frozen=True)
class Waiting:
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
    def is_much(self) -> bool:
        """Whether it is worth a word."""
        return self.share >= MUCH_WAITING

    @property
    def is_short(self) -> bool:
        """Whether to get a batch from another process would take about as long."""
        return self.waited < _LEAST_WAITING

    @property
    def mostly_idle(self) -> bool:
        """Whether batches mostly wait themselves, as for a disk, while no processor works on them.

        Half would not tell it from a busy machine, on which two programs share a processor.
        """
        return self.cpu is not None and self.cpu < self.making / 3

    def helpful_workers(self) -> int | None:
        """How many workers would make updates at least a tenth faster; None where no number would.

        An update takes as long as the longest of: its computing, its batch divided among the workers, and
        all work of both divided among the processors.
        """
        if self.is_short:
            return None
        most = self.processors if self.mostly_idle else self._spare
        computing = self.update - self.waited
        making = self.making if not self.workers else self.workers * self.update
        work = (making if self.cpu is None else self.cpu) + computing * min(self.threads, self.processors)
        expected = {
            count: max(computing, making / count, work / self.processors)
            for count in range(self.workers + 1, most + 1)
        }
        best = min(expected.values(), default=self.update)
        if best > _WORTH * self.update:
            return None
        return next(count for count, seconds in expected.items() if seconds <= _AS_GOOD * best)

    @property
    def _spare(self) -> int:
        """How many workers find a processor.

        Those that hinder the threads of a training on a few processors cost more than they bring.
        """
        shared = self.processors // 2 if self.processors > 2 else 0
        return max(self.processors - self.threads, shared)

    def __str__(self) -> str:
        return f"the model waits for data {100 * self.share:.0f} % of the time"


@dataclass(frozen=True)
class Phases:
    """What a worker measured of a training that it profiled; ``phases.json`` in the attempt's folder.

    Times are seconds, sizes bytes.

    Attributes:
        device: ``cpu``, or the GPU's name.
        threads: of torch on the CPU.
        processors: what the worker may use.
        workers: of the DataLoader.
        batch: rows an update.
        warm_up: updates at the beginning that are not measured.
        updates: how many are.
        traced: updates of which there is a trace.
        spent: of the measured updates, phase → seconds in all; no second is in two of them.
        loading_cpu: how much of ``spent["data"]`` a processor worked; None where DataLoader workers did.
        a_pass: what a forward and backward pass takes at least beside what its rows take; None where that was
            not measured.
        saves, saving: checkpoints, and what they took in all.
        validations, validating: the same of validations, without the first, which takes longer.
        gpu_busy: the share of the traced updates in which a GPU worked; None without one.
        memory: what → bytes: ``weights``, ``gradients``, ``optimizer``, ``gpu`` and ``host`` (the peaks).
        images_once: whether images are decoded in the first epoch and kept for the others.
        log_at_start: length of the log when training began.
    """

    device: str
    threads: int
    processors: int
    workers: int
    batch: int
    warm_up: int
    updates: int
    traced: int
    spent: dict[str, float]
    loading_cpu: float | None
    a_pass: float | None
    saves: int
    saving: float
    validations: int
    validating: float
    gpu_busy: float | None
    memory: dict[str, int]
    images_once: bool
    log_at_start: int

    @property
    def update(self) -> float:
        """Seconds of one update."""
        return sum(self.spent.values()) / self.updates

    @property
    def waiting(self) -> Waiting:
        """How long an update waits for its rows."""
        cpu = None if self.loading_cpu is None else self.loading_cpu / self.updates
        threads = self.threads if self.device == "cpu" else 1
        waited = making = self.spent.get("data", 0.0) / self.updates
        if self.gpu_busy is not None:  # one that is waited for after each phase seems to have less to do
            waited = min(waited, (1 - self.gpu_busy) * self.update)
        return Waiting(waited, self.update, self.workers, threads, self.processors, making, cpu)

    def save(self, path: Path) -> None:
        """Write them as JSON."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> Phases:
        """Read them, skipping fields of later versions."""
        return cls(**known_fields(cls, read_json(path)))
