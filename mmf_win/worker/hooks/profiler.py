"""Profiles a short training: the time of each phase, and a trace of a few updates.

::

    warm-up │ measured │ traced │ the last update, a checkpoint, a validation
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from mmf_win.errors import UsageError
from mmf_win.protocol import Attempt
from mmf_win.worker.hooks.clock import ASIDE, Clock, Lap
from mmf_win.worker.hooks.waiting import WARM_UP, decodes_once, waiting_in


class Profiler:
    """Measures a training of ``request.profile`` updates, and traces a few of them.

    Args:
        request: what the worker is to do.
        trainer: MMF's.
        clock: of the training; it times all phases.
        batch: rows an update.
    """

    def __init__(self, request: Attempt, trainer: Any, clock: Clock, batch: int) -> None:
        self._request, self._trainer, self._clock, self._batch = request, trainer, clock, batch
        self._few = min(WARM_UP, request.profile // 6)
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
            raise UsageError(
                f"training did not begin at update 0, and so made only {len(self._laps)} updates",
                hint="leave out what names a checkpoint",
            )
        laps = [*self._laps, self._clock.lap()]
        measured = [lap for lap in laps[self._few : self._traced] if not any(map(lap.begun.get, ASIDE))]
        phases = sorted({phase for lap in measured for phase in lap.of_update})
        # The first validation imports what only validations need, and decodes images.
        validations = [lap for lap in laps if lap.begun["validation"]][1:]
        waiting, busy = waiting_in(measured, self._trainer, 1), None
        in_trace = sum(sum(lap.of_update.values()) for lap in laps[self._traced : self._traced + self._few])
        if self._on_gpu and (busy := _busy(self._trace.events(), in_trace)) is not None:
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


def _busy(events: Iterable[Any], seconds: float) -> float | None:
    """The share of some seconds in which a GPU did one of the traced things, as torch's own table counts it.

    None where none was seen: not every system lets torch see what a GPU does.
    """
    spans = [
        event.time_range.elapsed_us() / 1e6
        for event in events
        if event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False)
    ]
    return min(1.0, sum(spans) / seconds) if spans else None
