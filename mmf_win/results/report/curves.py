"""Training curves, read from a run's events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mmf_win.dataset.coverage import Coverage
from mmf_win.protocol import Event
from mmf_win.protocol.metrics import series_values

_RESUME_REASONS = {
    "interrupted": "after an interruption",
    "cuda_oom": "after the GPU ran out of memory",
    "host_oom": "after the host ran out of memory",
    "disk": "after the disk was full or a file limit was reached",
    "nan": "after the loss became NaN",
    "killed": "after it was killed",
    "ok": "to train for more updates",
}


@dataclass(frozen=True)
class AttemptCurve:
    """One worker process that trained. Unknown values are ``None``.

    Attributes:
        start_update: Update at which the attempt started.
        batch: Rows per update.
        micro_batch: Rows per forward pass.
        device: Device of the training.
        resume_reason: Reason why the run was resumed; empty for the first attempt.
        coverage: Training data.
        max_updates: Total number of updates to reach.
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
        """Batch size, and the micro-batch if it is smaller."""
        if self.micro_batch in (None, self.batch):
            return str(self.batch or "unknown")
        return f"{self.batch or 'unknown'}, micro-batch {self.micro_batch}"


@dataclass(frozen=True)
class Sample:
    """Values reported at one moment of training.

    Attributes:
        update: Number of completed updates.
        seconds: Training time so far in seconds, without pauses between attempts.
        values: Numbers by series name; see :func:`mmf_win.protocol.metrics.series_values`.
        coverage: Data of a validation, if known.
    """

    update: int
    seconds: float
    values: dict[str, float]
    coverage: Coverage | None = None


@dataclass(frozen=True)
class TrainingCurves:
    """Curves of one run's training.

    Attributes:
        attempts: Worker processes that trained, in order.
        samples: Valid samples in order, without those that a later attempt repeated.
        superseded_samples: Samples that a later attempt repeated.
        versions: Package versions of the newest attempt.
    """

    attempts: tuple[AttemptCurve, ...] = ()
    samples: tuple[Sample, ...] = ()
    superseded_samples: tuple[Sample, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def get_series(self, name: str, *, superseded: bool = False) -> list[tuple[int, float]]:
        """Return pairs of update and value of a series such as ``train/loss`` or ``val/auroc``.

        Args:
            name: Name of the series.
            superseded: Read the samples that a later attempt repeated, instead of the valid ones.
        """
        samples = self.superseded_samples if superseded else self.samples
        return [(sample.update, sample.values[name]) for sample in samples if name in sample.values]

    @property
    def best_validation(self) -> Sample | None:
        """Validation with the highest AUROC; the first one if several are equal."""
        validations = [sample for sample in self.samples if "val/auroc" in sample.values]
        return max(validations, key=lambda sample: sample.values["val/auroc"], default=None)

    def get_series_over_time(self, name: str) -> list[tuple[float, float]]:
        """Return pairs of training time in seconds and value, including superseded samples."""
        all_samples = sorted((*self.samples, *self.superseded_samples), key=lambda sample: sample.seconds)
        return [(sample.seconds, sample.values[name]) for sample in all_samples if name in sample.values]


def read_curves(events: Iterable[Event], outcome_of: Callable[[str], str | None]) -> TrainingCurves:
    """Read the training curves from events; unknown events and values are skipped.

    Args:
        events: Events of all attempts.
        outcome_of: Returns the outcome of an attempt by its name, or ``None`` if it is not recorded.

    Returns:
        The curves.
    """
    attempts: list[AttemptCurve] = []
    samples: list[Sample] = []
    superseded: list[Sample] = []
    outcomes: dict[str, str | None] = {}  # of the attempts since the last one that trained
    versions: dict[str, str] = {}
    current_attempt = None
    seconds_before = start_time = seconds = 0.0
    for event in events:
        if (time := event.get("t")) is None:
            continue
        kind, name = event["kind"], event.get("attempt", "")
        outcomes[name] = event.get("outcome") if kind == "run_ended" else outcomes.get(name)
        if kind == "run_started":
            versions = {key: value for key, value in event.items() if isinstance(value, str)}
        elif kind == "train_started":
            seconds_before, start_time, current_attempt = seconds, time, name
            outcome = _find_last_outcome(outcomes, name, outcome_of)
            outcomes = {name: None}
            reason = _RESUME_REASONS.get(outcome, "after an error") if outcome else "after it was killed"
            attempt = AttemptCurve(
                start_update=event.get("update", 0),
                batch=event.get("batch"),
                micro_batch=event.get("micro_batch"),
                device=event.get("device"),
                resume_reason=reason if attempts else "",
                coverage=Coverage.from_json(event.get("data")),
                max_updates=event.get("max_updates"),
            )
            attempts.append(attempt)
            superseded += [sample for sample in samples if sample.update > attempt.start_update]
            samples = [sample for sample in samples if sample.update <= attempt.start_update]
        elif not attempts or name != current_attempt or event.get("final"):
            continue
        elif values := series_values(event):
            seconds = seconds_before + max(0.0, time - start_time)
            update = event.get("update", 0)
            samples.append(Sample(update, seconds, values, Coverage.from_json(event.get("data"))))
    superseded.sort(key=lambda sample: sample.seconds)
    return TrainingCurves(tuple(attempts), tuple(samples), tuple(superseded), versions)


def _find_last_outcome(
    outcomes: dict[str, str | None], current_attempt: str, outcome_of: Callable[[str], str | None]
) -> str | None:
    """Return the outcome of the last attempt that has one, or ``None`` if all were killed.

    Args:
        outcomes: Outcomes that the events record, by attempt name, oldest first.
        current_attempt: Attempt that starts now. It has the name of an earlier one whose folder was removed.
        outcome_of: As for :func:`read_curves`.
    """
    for name, outcome in reversed(outcomes.items()):
        if outcome is None and name != current_attempt:
            outcome = outcome_of(name)
        if outcome is not None:
            return outcome
    return None
