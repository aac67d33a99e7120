"""Finds out, in the first updates of a training, how long the model waits for data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.utils.data import dataloader

from mmf_win.phases import Waiting
from mmf_win.protocol import Attempt
from mmf_win.threads import processors
from mmf_win.worker.hooks.clock import Clock, Lap, Timed

WARM_UP = 5
"""Updates that are not measured, as they begin what the others find ready."""

_MEASURED = 20

LOADING: tuple[Timed, ...] = (
    (dataloader._BaseDataLoaderIter, "__next__", "data"),
    (dataloader.DataLoader, "__iter__", "data"),  # where it has workers, they are started here
)
"""Where MMF waits for a batch."""


class WaitWatch:
    """Measures the updates after the first few, once.

    Args:
        trainer: MMF's.
        clock: of the training; it times :data:`LOADING`.
        ranks: processes that train together and share the processors.
    """

    def __init__(self, trainer: Any, clock: Clock, ranks: int) -> None:
        self._trainer, self._clock, self._ranks = trainer, clock, ranks
        if trainer.device.type == "cuda":
            clock.gpu_event = partial(torch.cuda.Event, enable_timing=True)
        self._laps: list[Lap] = []

    def updated(self, lap: Lap) -> Waiting | None:
        """An update is done; what was found out, after the last one that is measured."""
        if len(self._laps) >= WARM_UP + _MEASURED:
            return None
        self._laps.append(lap)
        if len(self._laps) < WARM_UP + _MEASURED:
            return None
        measured = self._laps[WARM_UP:]
        found = waiting_in(measured, self._trainer, self._ranks)
        if self._clock.gpu_event is None:
            return found
        self._clock.gpu_event = None
        torch.cuda.synchronize()
        idle = sum(begin.elapsed_time(end) for lap in measured for begin, end in lap.waits)  # milliseconds
        return replace(found, waited=idle / 1000 / _MEASURED)


def waiting_in(laps: Sequence[Lap], trainer: Any, ranks: int) -> Waiting:
    """How long updates waited for their rows, by the clock of the process that trains.

    Args:
        laps: one an update.
        trainer: MMF's.
        ranks: processes that train together and share the processors.
    """
    workers = int(trainer.config.training.num_workers)
    making = fmean(lap.seconds["data"] for lap in laps)
    return Waiting(
        waited=making,
        update=fmean(sum(lap.of_update.values()) for lap in laps),
        workers=workers,
        threads=1 if trainer.device.type == "cuda" else torch.get_num_threads(),
        processors=max(1, processors() // ranks),
        making=making,
        cpu=None if workers else fmean(lap.cpu["data"] for lap in laps),
    )


def decodes_once(request: Attempt, trainer: Any) -> bool:
    """Whether images are decoded in the first epoch and kept for the others."""
    uses = OmegaConf.select(trainer.config, "dataset_config.hateful_memes.use_images")
    return request.images is not None and bool(uses)
