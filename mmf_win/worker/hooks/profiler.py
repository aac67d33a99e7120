"""Measures where the time of training goes: what its first updates wait for, or all of a short one:

warm-up │ measured │ traced │ the last update, a checkpoint, a validation
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.utils.data import dataloader

from mmf_win.errors import UsageError
from mmf_win.machine import available_cpus
from mmf_win.protocol import Attempt
from mmf_win.protocol.data_wait import Waiting
from mmf_win.worker.hooks.clock import ASIDE, Clock, Lap, Timed

_WARM_UP = 5  # updates that are not measured, as they begin what the others find ready
_MEASURED = 20

TIMED: tuple[Timed, ...] = (
    (dataloader._BaseDataLoaderIter, "__next__", "data"),
    (dataloader.DataLoader, "__iter__", "data"),  # where it has workers, they are started here
    (torch.Tensor, "backward", "backward"),
)
"""What belongs to which phase of training in every MMF; ``data``: where it waits for a batch."""


class WaitWatch:
    """Measures the updates after the first few, once; ``ranks`` processes share the processors."""

    def __init__(self, trainer: Any, clock: Clock, ranks: int) -> None:
        self._trainer, self._clock, self._ranks = trainer, clock, ranks
        if trainer.device.type == "cuda":
            clock.gpu_event = partial(torch.cuda.Event, enable_timing=True)
        self._laps: list[Lap] = []

    def updated(self, lap: Lap) -> Waiting | None:
        """An update is done; what was found out, after the last one that is measured."""
        if len(self._laps) >= _WARM_UP + _MEASURED:
            return None
        self._laps.append(lap)
        if len(self._laps) < _WARM_UP + _MEASURED:
            return None
        measured = self._laps[_WARM_UP:]
        found = waiting_in(measured, self._trainer, self._ranks)
        if self._clock.gpu_event is None:
            return found
        self._clock.gpu_event = None
        torch.cuda.synchronize()
        idle = sum(begin.elapsed_time(end) for lap in measured for begin, end in lap.waits)  # milliseconds
        return replace(found, waited=idle / 1000 / _MEASURED)


class Profiler:
    """Measures a training of ``request.profile`` updates of ``batch`` rows, and traces a few of them."""

    def __init__(self, request: Attempt, trainer: Any, clock: Clock, batch: int) -> None:
        self._request, self._trainer, self._clock, self._batch = request, trainer, clock, batch
        self._few = min(_WARM_UP, request.profile // 6)
        self._traced = request.profile - 1 - self._few
        self._on_gpu = trainer.device.type == "cuda"
        self._laps: list[Lap] = []
        self._trace: Any = None
        self._now = clock.now
        if self._on_gpu:
            clock.now = self._settled

    def updated(self, lap: Lap) -> None:
        """An update is done."""
        self._laps.append(lap)
        if len(self._laps) == self._traced:
            self._clock.now = self._now  # a GPU is seen at work as it works in training
            self._trace = torch.profiler.profile()
            self._trace.start()
        elif len(self._laps) == self._traced + self._few:
            self._trace.stop()
            self._export(self._request.attempt.trace)
        self._clock.lap()  # none of that belongs to an update

    def ended(self) -> dict[str, Any]:
        """What was measured, when training has ended with a checkpoint and a validation."""
        if len(self._laps) < self._request.profile:
            message = f"training did not begin at update 0, and so made only {len(self._laps)} updates"
            raise UsageError(message, hint="leave out what names a checkpoint")
        laps = [*self._laps, self._clock.lap()]
        measured = [lap for lap in laps[self._few : self._traced] if not any(map(lap.begun.get, ASIDE))]
        phases = sorted({phase for lap in measured for phase in lap.of_update})
        # The first validation imports what only validations need, and decodes images.
        validations = [lap for lap in laps if lap.begun["validation"]][1:]
        waiting, busy = waiting_in(measured, self._trainer, 1), None
        in_trace = sum(sum(lap.of_update.values()) for lap in laps[self._traced : self._traced + self._few])
        if self._on_gpu and (busy := gpu_share(self._trace.events(), in_trace)) is not None:
            # A GPU that is waited for after each phase seems to have less to do.
            waiting = replace(waiting, waited=min(waiting.waited, (1 - busy) * waiting.update))
        return {
            "device": torch.cuda.get_device_name() if self._on_gpu else str(self._trainer.device),
            "batch": self._batch,
            "spent": {phase: fmean(lap.seconds[phase] for lap in measured) for phase in phases},
            "waiting": asdict(waiting),
            "checkpoint": _mean("checkpoint", laps),
            "validation": _mean("validation", validations),
            "gpu_busy": busy,
            "images_once": decodes_once(self._request, self._trainer),
        }

    def _settled(self) -> float:
        """The time at which the GPU has done what it was given: what a phase starts ends in that phase."""
        torch.cuda.synchronize()
        return self._now()

    def _export(self, file: Path) -> None:
        here = Path.cwd()
        os.chdir(file.parent)  # on Windows, torch writes to no folder whose name the code page has not
        try:
            self._trace.export_chrome_trace(file.name)
        finally:
            os.chdir(here)


def _mean(phase: str, laps: Iterable[Lap]) -> float:
    """Seconds that a phase takes each time that it begins."""
    times = sum(lap.begun[phase] for lap in laps)
    return sum(lap.seconds[phase] for lap in laps) / max(times, 1)


def gpu_share(events: Iterable[Any], seconds: float) -> float | None:
    """Return the share of some seconds in which a GPU ran a traced kernel, as torch's own table counts it.

    None if there is no kernel in the trace: not every system lets torch see what a GPU does.
    """
    spans = [
        event.time_range.elapsed_us() / 1e6
        for event in events
        if event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False)
    ]
    return min(1.0, sum(spans) / seconds) if spans else None


def waiting_in(laps: Sequence[Lap], trainer: Any, ranks: int) -> Waiting:
    """How long updates, of a lap each, waited for their rows, by the clock of the process that trains."""
    workers = int(trainer.config.training.num_workers)
    making = fmean(lap.seconds["data"] for lap in laps)
    return Waiting(
        waited=making,
        update=fmean(sum(lap.of_update.values()) for lap in laps),
        workers=workers,
        threads=1 if trainer.device.type == "cuda" else torch.get_num_threads(),
        processors=max(1, available_cpus() // ranks),
        making=making,
        cpu=None if workers else fmean(lap.cpu["data"] for lap in laps),
    )


def decodes_once(request: Attempt, trainer: Any) -> bool:
    """Whether images are decoded in the first epoch and kept for the others."""
    uses = OmegaConf.select(trainer.config, "dataset_config.hateful_memes.use_images")
    return request.images is not None and bool(uses)
