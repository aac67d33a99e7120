"""The micro-batch: how many rows go through the model in one pass, and the most that a GPU has room for."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import torch
from omegaconf import OmegaConf

from mmf_win.worker.hooks.observer import Observer
from mmf_win.worker.hooks.ranks import get_world_size

#: The types of devices on which the largest micro-batch is looked for; the CPU has no limit to measure.
#:
#: Public so that tests can let the CPU stand for a GPU.
MEASURABLE_DEVICES = {"cuda"}

# The allocator cannot use the last bit, as what is free lies in pieces.
_USABLE_SHARE = 0.9
# What the memory of a pass depends on, beside the model; paths and learning rates are not among it.
_MEMORY_KEYS = (
    "dataset_config.hateful_memes.processors",
    "dataset_config.hateful_memes.max_features",
    "dataset_config.hateful_memes.use_features",
    "dataset_config.hateful_memes.use_images",
    "optimizer.type",
)


class MicroBatchSizer:
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
        self.batch_size: int = own * get_world_size()
        self.fit_key = _build_fit_key(
            trainer, self.batch_size, f"{precision}, fast" if request.fast else precision
        )
        known = task.known_micro_batches.get(self.fit_key)
        self.is_known_fit = task.micro_batch is None and known is not None
        rows = task.micro_batch or known
        self.rows: int = min(rows or self.batch_size, self.batch_size)
        self.search: MicroBatchSearch | None = None
        if task.find_micro_batch and not rows and trainer.device.type in MEASURABLE_DEVICES:
            self.search = MicroBatchSearch(own, trainer.device)
            self.rows = self.search.rows * get_world_size()

    @property
    def rows_per_process(self) -> int:
        """The rows that this process puts through its model in one pass."""
        return max(1, self.rows // get_world_size())

    def on_update_start(self) -> None:
        """The gradients of an update are about to be computed."""
        if self.search is not None:
            self._scale = self._scaler.get_scale()
            self.search.on_update_start()

    def on_update_end(self) -> None:
        """An update is done; the next one may have another micro-batch, or the search has ended."""
        if self.search is None or self._scaler.get_scale() < self._scale:
            return  # in fp16, an update that overflowed: the optimizer may not have made its state yet
        found, before = self.search.on_update_end(), self.rows
        self.rows = self.search.rows * get_world_size()
        if found:
            self.search = None
        if found or self.rows != before:
            self._observer.write_event("micro_batch", rows=self.rows, found=found)


def _build_fit_key(trainer: Any, batch: int, modes: str) -> str:
    from mmf.version import __version__ as mmf_version

    config, device = trainer.config, trainer.device.type
    values = [config.model_config[config.model], *(OmegaConf.select(config, key) for key in _MEMORY_KEYS)]
    digest = hashlib.sha256(json.dumps([*map(_to_plain, values)], sort_keys=True, default=str).encode())
    if device == "cuda":
        properties = torch.cuda.get_device_properties(trainer.device)
        device = f"{properties.name} {properties.total_memory / 2**30:.0f} GiB"
    software = f"torch {torch.__version__}, MMF {mmf_version}"
    device += f" x {get_world_size()}" if get_world_size() > 1 else ""
    return f"{config.model}, batch {batch}, {modes}, {device}, {software}, {digest.hexdigest()[:12]}"


def _to_plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=False) if OmegaConf.is_config(value) else value


class MicroBatchSearch:
    """Finds the most rows of a batch that fit on a GPU, from the peaks of two ordinary updates.

    Memory grows linearly with the rows. The first update, during which the optimizer makes its
    state, is not measured. The next update uses the result; if it does not fit, a retry has a smaller one.
    Before each, ``rows`` is the micro-batch to take. All figures are torch's own, of this process.
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        self.rows = max(1, batch // 8)
        self._batch, self._device, self._is_warm = batch, device, False
        self._peaks: dict[int, int] = {}  # bytes, by rows

    def on_update_start(self) -> None:
        """Measure from here."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def on_update_end(self) -> bool:
        """Measure to here; True when it is found."""
        if not self._is_warm:
            self._is_warm = True
            return self._batch == 1
        self._peaks[self.rows] = torch.cuda.max_memory_allocated(self._device)
        self.rows = self.rows * 2 if len(self._peaks) == 1 else self._largest_fitting_rows()
        return len(self._peaks) == 2

    def _largest_fitting_rows(self) -> int:
        (few, low), (many, high) = self._peaks.items()
        a_row = (high - low) / (many - few)
        free, _ = torch.cuda.mem_get_info(self._device)
        usable = (free + torch.cuda.memory_reserved(self._device)) * _USABLE_SHARE
        # A batch is cut into parts that are as equal as can be, and the largest has to fit.
        largest = {math.ceil(self._batch / parts) for parts in range(1, self._batch + 1)}
        return max((rows for rows in largest if low + (rows - few) * a_row <= usable), default=1)
