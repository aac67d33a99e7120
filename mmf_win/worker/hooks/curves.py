"""The curves of a training for TensorBoard: ``tensorboard --logdir <save dir>`` shows every run.

MMF's own ``training.tensorboard`` writes the loss alone, into folders whose names Windows refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_OF_TRAINING = ("loss", "lr", "updates_per_s", "max_mem_mib")


class Curves:
    """Writes what is a number in the events of training; nothing where tensorboard is not installed.

    Args:
        folder: the run's, so that TensorBoard shows the run's id.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Take an event in; its update is TensorBoard's step."""
        if kind == "train_started":
            self._begin(values["update"])
        if self._writer is None:
            return
        if kind == "train":
            self._add(values["update"], {f"train/{key}": values.get(key) for key in _OF_TRAINING})
        elif kind == "val" and not values.get("final"):
            metrics = {key.removeprefix("hateful_memes/"): value for key, value in values["metrics"].items()}
            self._add(values["update"], {f"val/{key}": value for key, value in metrics.items()})

    def _begin(self, update: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        # What an earlier attempt wrote after this update is no longer shown.
        self._writer = SummaryWriter(str(self._folder), purge_step=update + 1)

    def _add(self, update: int, scalars: Mapping[str, float | None]) -> None:
        for name, value in scalars.items():
            if value is not None:
                self._writer.add_scalar(name, value, update)
        self._writer.flush()  # a worker may be killed at any time
