"""What TensorBoard shows."""

from __future__ import annotations

from pathlib import Path


def steps(run: Path, tag: str) -> dict[int, float]:
    """Step → value of a scalar, as TensorBoard reads it from all the event files of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(run))
    shown.Reload()
    return {event.step: event.value for event in shown.Scalars(tag)}
