"""Finds out, in the first updates of a training, how long the model waits for data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from statistics import fmean
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.utils.data import dataloader

from mmf_win.phases import Waiting
from mmf_win.protocol import Attempt
from mmf_win.threads import processors
from mmf_win.worker.hooks.clock import ASIDE, Clock, Lap, Timed

WARM_UP = 5
"""Updates that are not measured, as they begin what the others find ready."""

_MEASURED = 20

LOADING: tuple[Timed, ...] = (
    (dataloader._BaseDataLoaderIter, "__next__", "data"),
    (dataloader.DataLoader, "__iter__", "data"),  # where it has workers, they are started here
)
"""Where MMF waits for a batch."""


class GpuIdle:
    """How long a GPU has nothing to do while a batch is waited for.

    A GPU works on while its process waits, so the process's clock would count time in which nothing is lost.

    Args:
        clock: of the training.
        event: makes what the GPU notes its own time in.
    """

    def __init__(self, clock: Clock, event: Callable[[], Any]) -> None:
        self._clock, self._event = clock, event
        self._waits: list[tuple[Any, Any]] = []
        self.on = False

    def watch(self) -> None:
        """Note each wait while ``on``."""
        for owner, name, _ in LOADING:
            setattr(owner, name, self._noted(getattr(owner, name)))

    def _noted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if not self.on or self._clock.phase in ASIDE:
                return method(*args, **kwargs)
            begin, end = self._event(), self._event()
            begin.record()  # the GPU comes to this when it has done what it was given before
            try:
                return method(*args, **kwargs)
            finally:
                end.record()
                self._waits.append((begin, end))

        return noted

    def seconds(self) -> float:
        """Of all waits so far."""
        torch.cuda.synchronize()
        milliseconds: float = sum(begin.elapsed_time(end) for begin, end in self._waits)
        return milliseconds / 1000


class WaitWatch:
    """Measures the updates after the first few, once.

    Args:
        trainer: MMF's.
        clock: of the training; it times :data:`LOADING`.
        ranks: processes that train together and share the processors.
    """

    def __init__(self, trainer: Any, clock: Clock, ranks: int) -> None:
        self._trainer, self._ranks = trainer, ranks
        event = partial(torch.cuda.Event, enable_timing=True)
        self._idle = GpuIdle(clock, event) if trainer.device.type == "cuda" else None
        if self._idle is not None:
            self._idle.watch()
        self._laps: list[Lap] = []

    def updated(self, lap: Lap) -> Waiting | None:
        """An update is done; what was found out, after the last one that is measured."""
        if len(self._laps) >= WARM_UP + _MEASURED:
            return None
        self._laps.append(lap)
        if self._idle is not None:
            self._idle.on = WARM_UP <= len(self._laps) < WARM_UP + _MEASURED
        if len(self._laps) < WARM_UP + _MEASURED:
            return None
        found = waiting_in(self._laps[WARM_UP:], self._trainer, self._ranks)
        return found if self._idle is None else replace(found, waited=self._idle.seconds() / _MEASURED)


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
