"""Size of the micro-batch, and the search for the largest one that fits on a GPU."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import torch
from omegaconf import OmegaConf

from mmf_win.worker.hooks.observer import Observer
from mmf_win.worker.hooks.ranks import get_world_size

#: Device types on which the largest micro-batch can be measured; the CPU has no limit.
#:
#: Public so that tests can treat the CPU as a GPU.
MEASURABLE_DEVICES = {"cuda"}

# Memory is fragmented, so the allocator cannot use all of it.
_USABLE_SHARE = 0.9
# Settings besides the model that affect memory, unlike paths or learning rates.
_MEMORY_KEYS = (
    "dataset_config.hateful_memes.processors",
    "dataset_config.hateful_memes.max_features",
    "dataset_config.hateful_memes.use_features",
    "dataset_config.hateful_memes.use_images",
    "optimizer.type",
)


class MicroBatchSizer:
    """The size of the forward and backward passes of a training.

    Attributes:
        batch_size: Rows of an update, or of a step of MMF's gradient accumulation, over all ranks.
        rows: The micro-batch: the rows of one pass over all ranks.
        fit_key: Text that identifies everything a fitting micro-batch depends on; the parent stores ``rows``
            under it.
        is_known_fit: ``rows`` is a micro-batch that fitted before.
        search: The search for the largest micro-batch; ``None`` if it is not requested or has ended.
    """

    def __init__(self, observer: Observer, trainer: Any, precision: str) -> None:
        from mmf.utils.general import get_batch_size

        request, task, rank_batch_size = observer.request, observer.request.train_task, get_batch_size()
        self._observer, self._scaler, self._scale = observer, trainer.scaler, 0.0
        self.batch_size: int = rank_batch_size * get_world_size()
        self.fit_key = _build_fit_key(trainer, self.batch_size, f"{precision}, fast" if request.fast else precision)
        known_rows = task.known_micro_batches.get(self.fit_key)
        self.is_known_fit = task.micro_batch is None and known_rows is not None
        rows = task.micro_batch or known_rows
        self.rows: int = min(rows or self.batch_size, self.batch_size)
        self.search: MicroBatchSearch | None = None
        if task.find_micro_batch and not rows and trainer.device.type in MEASURABLE_DEVICES:
            self.search = MicroBatchSearch(rank_batch_size, trainer.device)
            self.rows = self.search.rows * get_world_size()

    @property
    def rows_per_process(self) -> int:
        """Rows of one pass in this process."""
        return max(1, self.rows // get_world_size())

    def on_update_start(self) -> None:
        """Start measuring an update; call it before the gradients are computed."""
        if self.search is not None:
            self._scale = self._scaler.get_scale()
            self.search.on_update_start()

    def on_update_end(self) -> None:
        """Take the micro-batch of the next update from the search, and report changes."""
        if self.search is None or self._scaler.get_scale() < self._scale:
            return  # an fp16 update that overflowed may not have created the state of the optimizer
        is_done, previous_rows = self.search.on_update_end(), self.rows
        self.rows = self.search.rows * get_world_size()
        if is_done:
            self.search = None
        if is_done or self.rows != previous_rows:
            self._observer.write_event("micro_batch", rows=self.rows, found=is_done)


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
    """Search for the largest micro-batch that fits on a GPU, from the peak memory of two updates.

    Memory grows linearly with the rows. The first update is not measured, because the optimizer creates its
    state during it. The next update uses the result; if it does not fit, a retry uses a smaller one.

    Attributes:
        rows: The micro-batch of the next update; all numbers are those of this process.
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        self.rows = max(1, batch // 8)
        self._batch, self._device, self._is_warm = batch, device, False
        self._peaks: dict[int, int] = {}  # bytes by rows

    def on_update_start(self) -> None:
        """Start measuring."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def on_update_end(self) -> bool:
        """Measure the update, choose the next micro-batch and return whether the search is done."""
        if not self._is_warm:
            self._is_warm = True
            return self._batch == 1
        self._peaks[self.rows] = torch.cuda.max_memory_allocated(self._device)
        self.rows = self.rows * 2 if len(self._peaks) == 1 else self._largest_fitting_rows()
        return len(self._peaks) == 2

    def _largest_fitting_rows(self) -> int:
        (few, few_bytes), (many, many_bytes) = self._peaks.items()
        bytes_per_row = (many_bytes - few_bytes) / (many - few)
        free, _ = torch.cuda.mem_get_info(self._device)
        usable = (free + torch.cuda.memory_reserved(self._device)) * _USABLE_SHARE
        # A batch is split into parts of nearly equal size, and the largest part has to fit.
        part_sizes = {math.ceil(self._batch / parts) for parts in range(1, self._batch + 1)}
        fitting = (rows for rows in part_sizes if few_bytes + (rows - few) * bytes_per_row <= usable)
        return max(fitting, default=1)
