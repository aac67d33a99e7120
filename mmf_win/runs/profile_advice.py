"""Distribution of the training time, and advice on the largest removable cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmf_win.protocol.data_wait import DataWaitStats

_MIN_FIXED_SHARE = 0.3  # minimum share for advice on work that does not depend on the rows
_MIN_PERIODIC_SHARE = 0.1  # minimum share for advice on checkpoints, or on validations
_TARGET_PERIODIC_SHARE = 0.05  # share that the suggested interval leaves
_MIN_INTERVALS = 5  # minimum number of checkpoints and validations of a training
_MAX_IDLE_GPU_SHARE = 0.5


@dataclass(frozen=True)
class TrainingProfile:
    """Measurements of a training; all times are in seconds.

    Attributes:
        spent: Time per update, by phase.
        waiting: Time that an update waits for its rows.
        checkpoint, validation: Time of one checkpoint and of one validation.
        gpu_busy: Share of the traced updates during which a GPU worked, 0 to 1; ``None`` if unknown.
        images_once: Images are decoded in the first epoch and cached for the others.
        table: Torch's table of the traced updates.
        batch_size: Rows per update.
        checkpoint_interval, evaluation_interval: Intervals of the profiled training, in updates.
        max_updates: Total number of updates; ``None`` if unknown.
    """

    spent: dict[str, float]
    waiting: DataWaitStats
    checkpoint: float
    validation: float
    gpu_busy: float | None
    images_once: bool
    table: str
    batch_size: int
    checkpoint_interval: int
    evaluation_interval: int
    max_updates: int | None

    def seconds_by_phase(self) -> dict[str, float]:
        """Return the seconds per update by phase, including the share of checkpoints and validations.

        MMF saves a checkpoint after each validation, which is counted as part of the validation.
        """
        return {
            **self.spent,
            "checkpoints": self.checkpoint / self.checkpoint_interval,
            "validations": (self.validation + self.checkpoint) / self.evaluation_interval,
        }

    def shares_by_phase(self) -> dict[str, float]:
        """Return the share of each phase in the training time, 0 to 1."""
        seconds = self.seconds_by_phase()
        return {phase: spent / sum(seconds.values()) for phase, spent in seconds.items()}

    def largest_cost(self) -> str:
        """Return a sentence about the largest removable cost, with the override that reduces it, if any."""
        shares = self.shares_by_phase()
        costs = [self._data_cost(), self._fixed_work_cost(shares)]
        costs += [self._periodic_cost("checkpoints", self.checkpoint_interval, shares)]
        costs += [self._periodic_cost("validations", self.evaluation_interval, shares)]
        if removable := [cost for cost in costs if cost is not None]:
            return max(removable)[1]
        if self.gpu_busy is not None and self.gpu_busy < _MAX_IDLE_GPU_SHARE:
            return f"the GPU is busy {_format_percent(self.gpu_busy)} of the time"
        model = (f"{phase} {_format_percent(shares[phase])}" for phase in ("forward", "backward", "optimizer"))
        return f"the model itself takes the time: {', '.join(model)}"

    def _data_cost(self) -> tuple[float, str] | None:
        waiting = self.waiting
        if not waiting.is_significant:
            return None
        share = waiting.wait_s / sum(self.seconds_by_phase().values())
        text = f"the model waits for data {_format_percent(share)} of the time"
        if waiting.batch_cpu_s is not None:
            text += ", mostly for the disk" if waiting.is_io_bound else ", mostly for the CPU"
        if self.images_once:
            text += " (less once all images are decoded)"
        if (workers := waiting.recommend_workers()) is not None:
            return share, f"{text}: training.num_workers={workers}"
        return share, f"{text}; more DataLoader workers would not help"

    def _fixed_work_cost(self, shares: dict[str, float]) -> tuple[float, str] | None:
        share = sum(shares.get(phase, 0.0) for phase in ("optimizer", "logging", "other"))
        if share < _MIN_FIXED_SHARE:
            return None
        text = f"{_format_percent(share)} of the time is a fixed cost per update"
        return (share, f"{text}; a larger batch changes the training: training.batch_size={2 * self.batch_size}")

    def _periodic_cost(self, name: str, interval: int, shares: dict[str, float]) -> tuple[float, str] | None:
        share = shares[name]
        if share < _MIN_PERIODIC_SHARE:
            return None
        seconds = interval * self.seconds_by_phase()[name]
        text = f"{name} take {_format_percent(share)} of the time, {seconds:.1f} s each"
        least = interval * (share / (1 - share)) * (1 - _TARGET_PERIODIC_SHARE) / _TARGET_PERIODIC_SHARE
        step = 10 ** int(math.log10(least))
        suggested = step * math.ceil(least / step)
        if self.max_updates and suggested > self.max_updates / _MIN_INTERVALS:
            return share, text
        key = "checkpoint_interval" if name == "checkpoints" else "evaluation_interval"
        return share, f"{text}: training.{key}={suggested}"


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f} %"
