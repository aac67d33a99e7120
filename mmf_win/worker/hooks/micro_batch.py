"""The micro-batch: how many rows go through the model in one pass."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from mmf.utils.distributed import get_world_size
from mmf.utils.general import get_batch_size
from mmf.version import __version__ as mmf_version
from omegaconf import OmegaConf

from mmf_win.protocol import Attempt
from mmf_win.worker.hooks.largest_fit import LargestFit, meter_of

# What the memory of a pass depends on, beside the model; paths and learning rates are not among it.
_KEYS = (
    "dataset_config.hateful_memes.processors",
    "dataset_config.hateful_memes.max_features",
    "dataset_config.hateful_memes.use_features",
    "dataset_config.hateful_memes.use_images",
    "optimizer.type",
    "distributed.world_size",
)


class MicroBatch:
    """The rows of a forward and backward pass.

    Args:
        request: what the worker is to do.
        trainer: MMF's, with its configuration and device, and a scaler whose factor falls when an update
            overflows.
        precision: what the model calculates with.

    Attributes:
        batch: rows an update, or a step of MMF's own accumulation, over all GPUs.
        rows: the micro-batch: how many of them go through the model in one pass, over all GPUs.
        fit: what a micro-batch that fits depends on, as text; the parent remembers ``rows`` by it.
        is_known_fit: whether ``rows`` is a micro-batch that fitted before.
        finder: looks for the largest micro-batch that fits; None when that is not wanted, or is found.
    """

    def __init__(self, request: Attempt, trainer: Any, precision: str) -> None:
        self.batch: int = get_batch_size() * get_world_size()
        self.fit = _dependencies(trainer, self.batch, f"{precision}, fast" if request.fast else precision)
        known = request.fits.get(self.fit)
        self.is_known_fit = request.micro_batch is None and known is not None
        self.rows: int = min(request.micro_batch or known or self.batch, self.batch)
        self.finder: LargestFit | None = None
        self._scaler, self._scale = trainer.scaler, 0.0
        meter = meter_of(trainer.device)
        if request.find_micro_batch and not (request.micro_batch or known) and meter is not None:
            self.finder = LargestFit(get_batch_size(), meter)
            self.rows = self.finder.rows * get_world_size()

    @property
    def limit(self) -> int:
        """The rows that this process puts through its model in one pass."""
        return max(1, self.rows // int(get_world_size()))

    def update_begins(self) -> None:
        """The gradients of an update are about to be computed."""
        if self.finder is not None:
            self._scale = self._scaler.get_scale()
            self.finder.update_begins()

    def update_ends(self) -> bool:
        """An update is done; True when the next one has another micro-batch, or the search has ended."""
        if self.finder is None or self._scaler.get_scale() < self._scale:
            return False  # in fp16, an update that overflowed: the optimizer may not have made its state yet
        found, before = self.finder.update_ends(), self.rows
        self.rows = self.finder.rows * int(get_world_size())
        if found:
            self.finder = None
        return found or self.rows != before


def _dependencies(trainer: Any, batch: int, ways: str) -> str:
    config = trainer.config
    model = config.model_config[config.model]
    values = [_plain(model), *(_plain(OmegaConf.select(config, key)) for key in _KEYS)]
    digest = hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
    software = f"torch {torch.__version__}, MMF {mmf_version}"
    return f"{config.model}, batch {batch}, {ways}, {_device(trainer.device)}, {software}, {digest[:12]}"


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=False) if OmegaConf.is_config(value) else value


def _device(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} {properties.total_memory / 2**30:.0f} GiB"
