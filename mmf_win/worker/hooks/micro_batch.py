"""The micro-batch: how many rows go through the model in one pass, and the most that a GPU has room for."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import torch
from omegaconf import OmegaConf

from mmf_win.worker.hooks.observer import Observer
from mmf_win.worker.hooks.ranks import ranks

#: The types of devices on which the largest micro-batch is looked for; the CPU has no limit to measure.
#:
#: Public so that tests can let the CPU stand for a GPU.
MEASURABLE_DEVICES = {"cuda"}

# The allocator cannot use the last bit, as what is free lies in pieces.
_USABLE = 0.9
# What the memory of a pass depends on, beside the model; paths and learning rates are not among it.
_KEYS = (
    "dataset_config.hateful_memes.processors",
    "dataset_config.hateful_memes.max_features",
    "dataset_config.hateful_memes.use_features",
    "dataset_config.hateful_memes.use_images",
    "optimizer.type",
)


class MicroBatch:
    """The rows of a forward and backward pass, in which the model calculates with a ``precision``.

    Attributes:
        batch: rows an update, or a step of MMF's own accumulation, over all GPUs.
        rows: the micro-batch: how many of them go through the model in one pass, over all GPUs.
        fit: what a micro-batch that fits depends on, as text; the parent remembers ``rows`` by it.
        is_known_fit: whether ``rows`` is a micro-batch that fitted before.
        finder: looks for the largest micro-batch that fits; None when that is not wanted, or is found.
    """

    def __init__(self, observer: Observer, trainer: Any, precision: str) -> None:
        from mmf.utils.general import get_batch_size

        request, task, own = observer.request, observer.request.train_task, get_batch_size()
        self._observer, self._scaler, self._scale = observer, trainer.scaler, 0.0
        self.batch: int = own * ranks()
        self.fit = _dependencies(trainer, self.batch, f"{precision}, fast" if request.fast else precision)
        known = task.known_micro_batches.get(self.fit)
        self.is_known_fit = task.micro_batch is None and known is not None
        rows = task.micro_batch or known
        self.rows: int = min(rows or self.batch, self.batch)
        self.finder: LargestFit | None = None
        if task.find_micro_batch and not rows and trainer.device.type in MEASURABLE_DEVICES:
            self.finder = LargestFit(own, trainer.device)
            self.rows = self.finder.rows * ranks()

    @property
    def limit(self) -> int:
        """The rows that this process puts through its model in one pass."""
        return max(1, self.rows // ranks())

    def update_begins(self) -> None:
        """The gradients of an update are about to be computed."""
        if self.finder is not None:
            self._scale = self._scaler.get_scale()
            self.finder.update_begins()

    def update_ends(self) -> None:
        """An update is done; the next one may have another micro-batch, or the search has ended."""
        if self.finder is None or self._scaler.get_scale() < self._scale:
            return  # in fp16, an update that overflowed: the optimizer may not have made its state yet
        found, before = self.finder.update_ends(), self.rows
        self.rows = self.finder.rows * ranks()
        if found:
            self.finder = None
        if found or self.rows != before:
            self._observer.event("micro_batch", rows=self.rows, found=found)


def _dependencies(trainer: Any, batch: int, ways: str) -> str:
    from mmf.version import __version__ as mmf_version

    config, device = trainer.config, trainer.device.type
    values = [config.model_config[config.model], *(OmegaConf.select(config, key) for key in _KEYS)]
    digest = hashlib.sha256(json.dumps([*map(_plain, values)], sort_keys=True, default=str).encode())
    if device == "cuda":
        properties = torch.cuda.get_device_properties(trainer.device)
        device = f"{properties.name} {properties.total_memory / 2**30:.0f} GiB"
    software = f"torch {torch.__version__}, MMF {mmf_version}"
    device += f" x {ranks()}" if ranks() > 1 else ""
    return f"{config.model}, batch {batch}, {ways}, {device}, {software}, {digest.hexdigest()[:12]}"


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=False) if OmegaConf.is_config(value) else value


class LargestFit:
    """Finds the most rows of a batch that fit on a GPU, from the peaks of two ordinary updates.

    Memory grows linearly with the rows. The first update, during which the optimizer makes its
    state, is not measured. The next update uses the result; if it does not fit, a retry has a smaller one.
    Before each, ``rows`` is the micro-batch to take. All figures are torch's own, of this process.
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        self.rows = max(1, batch // 8)
        self._batch, self._device, self._warm = batch, device, False
        self._peaks: dict[int, int] = {}  # bytes, by rows

    def update_begins(self) -> None:
        """Measure from here."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def update_ends(self) -> bool:
        """Measure to here; True when it is found."""
        if not self._warm:
            self._warm = True
            return self._batch == 1
        self._peaks[self.rows] = torch.cuda.max_memory_allocated(self._device)
        self.rows = self.rows * 2 if len(self._peaks) == 1 else self._most()
        return len(self._peaks) == 2

    def _most(self) -> int:
        (few, low), (many, high) = self._peaks.items()
        a_row = (high - low) / (many - few)
        free, _ = torch.cuda.mem_get_info(self._device)
        usable = (free + torch.cuda.memory_reserved(self._device)) * _USABLE
        # A batch is cut into parts that are as equal as can be, and the largest has to fit.
        largest = {math.ceil(self._batch / parts) for parts in range(1, self._batch + 1)}
        return max((rows for rows in largest if low + (rows - few) * a_row <= usable), default=1)
