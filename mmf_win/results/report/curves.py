"""What a run's events say about its training, update by update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mmf_win.dataset.coverage import Coverage
from mmf_win.protocol import Event
from mmf_win.protocol.metrics import series_values

_RESUME_REASONS = {
    "interrupted": "after an interruption",
    "cuda_oom": "after the GPU's memory had run out",
    "host_oom": "after the memory had run out",
    "disk": "after the disk had filled up, or a limit of files was reached",
    "nan": "after the loss had become NaN",
    "killed": "after it was killed",
    "ok": "with more updates to go",
}


@dataclass(frozen=True)
class AttemptCurve:
    """One process that trained; what is not known of it is None.

    Attributes:
        update: where it began.
        batch, micro_batch: rows of an update, and of a forward pass.
        device: what it ran on.
        why: for a later attempt, what had happened before.
        data: what it trained on.
        total: updates that it was to reach.
    """

    start_update: int
    batch: int | None
    micro_batch: int | None
    device: str | None
    resume_reason: str
    coverage: Coverage | None
    max_updates: int | None

    @property
    def batching(self) -> str:
        """The batch, and the micro-batch where that is smaller."""
        if self.micro_batch in (None, self.batch):
            return str(self.batch or "unknown")
        return f"{self.batch or 'unknown'}, micro-batch {self.micro_batch}"


@dataclass(frozen=True)
class Sample:
    """What was known at one moment of training.

    Attributes:
        update: how many updates were done.
        seconds: time spent in training until then; pauses between attempts do not count.
        values: numbers by the names of their series; see :func:`mmf_win.protocol.metrics.series_values`.
        data: of a validation, what it was measured on, where it is known.
    """

    update: int
    seconds: float
    values: dict[str, float]
    coverage: Coverage | None = None


@dataclass(frozen=True)
class TrainingCurves:
    """The training of one run.

    Attributes:
        attempts: the processes that trained, in order.
        samples: what counts, in order; what a later attempt did once more is not in it.
        undone: what a later attempt did once more.
        versions: of the packages that the newest attempt ran with.
    """

    attempts: tuple[AttemptCurve, ...] = ()
    samples: tuple[Sample, ...] = ()
    superseded_samples: tuple[Sample, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def series(self, name: str, *, superseded: bool = False) -> list[tuple[int, float]]:
        """Pairs of update and value of ``train/loss``, ``val/auroc`` and so on; or of what is ``undone``."""
        samples = self.superseded_samples if superseded else self.samples
        return [(sample.update, sample.values[name]) for sample in samples if name in sample.values]

    @property
    def best_validation(self) -> Sample | None:
        """The validation with the highest AUROC, the first of equal ones."""
        validations = [sample for sample in self.samples if "val/auroc" in sample.values]
        return max(validations, key=lambda sample: sample.values["val/auroc"], default=None)

    def series_over_time(self, name: str) -> list[tuple[float, float]]:
        """Pairs of seconds spent in training and value, of everything that was done."""
        everything = sorted((*self.samples, *self.superseded_samples), key=lambda sample: sample.seconds)
        return [(sample.seconds, sample.values[name]) for sample in everything if name in sample.values]


def read_curves(events: Iterable[Event], outcome_of: Callable[[str], str | None]) -> TrainingCurves:
    """Read the course of a training from its events; skip what is not understood.

    Args:
        events: of all attempts.
        outcome_of: return how an attempt ended, by its name; None where nothing says so.
    """
    attempts: list[AttemptCurve] = []
    samples: list[Sample] = []
    undone: list[Sample] = []
    outcomes: dict[str, str | None] = {}  # from the last attempt that trained on, by earlier versions' events
    versions: dict[str, str] = {}
    current = None
    spent = began = seconds = 0.0
    for event in events:
        if (time := event.get("t")) is None:
            continue
        kind, name = event["kind"], event.get("attempt", "")
        outcomes[name] = event.get("outcome") if kind == "run_ended" else outcomes.get(name)
        if kind == "run_started":
            versions = {key: value for key, value in event.items() if isinstance(value, str)}
        elif kind == "train_started":
            spent, began, current = seconds, time, name
            outcome = _last_outcome(outcomes, name, outcome_of)
            outcomes = {name: None}
            why = _RESUME_REASONS.get(outcome, "after an error") if outcome else "after it was killed"
            attempt = AttemptCurve(
                start_update=event.get("update", 0),
                batch=event.get("batch"),
                micro_batch=event.get("micro_batch"),
                device=event.get("device"),
                resume_reason=why if attempts else "",
                coverage=Coverage.from_json(event.get("data")),
                max_updates=event.get("max_updates"),
            )
            attempts.append(attempt)
            undone += [sample for sample in samples if sample.update > attempt.start_update]
            samples = [sample for sample in samples if sample.update <= attempt.start_update]
        elif not attempts or name != current or event.get("final"):
            continue
        elif values := series_values(event):
            seconds = spent + max(0.0, time - began)
            update = event.get("update", 0)
            samples.append(Sample(update, seconds, values, Coverage.from_json(event.get("data"))))
    undone.sort(key=lambda sample: sample.seconds)
    return TrainingCurves(tuple(attempts), tuple(samples), tuple(undone), versions)


def _last_outcome(
    outcomes: dict[str, str | None], current_attempt: str, outcome_of: Callable[[str], str | None]
) -> str | None:
    """Return the outcome of the last attempt that has one, or None if all were killed.

    Args:
        recorded: the names of the attempts, the first one first, with the outcomes that their events record.
        current: the attempt that begins. It has the name of an earlier one if the folder of that was removed.
        outcome_of: as for :func:`read_curves`.
    """
    for name, outcome in reversed(outcomes.items()):
        if outcome is None and name != current_attempt:
            outcome = outcome_of(name)
        if outcome is not None:
            return outcome
    return None
