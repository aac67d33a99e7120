"""Profiles a short training: the time of each phase, the memory, and a trace of a few updates.

::

    warm-up │ measured │ each second one in halves │ traced │ the last update, a checkpoint, a validation

An update in halves puts half of its rows through the model at once, and then the others. It takes longer by
what a pass costs whatever its rows, which tells what a larger batch would save.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from mmf_win.errors import UsageError
from mmf_win.phases import Phases
from mmf_win.protocol import AttemptRequest
from mmf_win.threads import processors
from mmf_win.worker.hooks.checkpoint_io import tensor_bytes
from mmf_win.worker.hooks.clock import Clock, Lap
from mmf_win.worker.hooks.waiting import WARM_UP, decodes_once

if TYPE_CHECKING:
    from mmf_win.worker.hooks.micro_batch import MicroBatch

_PASS = ("transfer", "forward", "backward")


class Profiler:
    """Measures a training of ``request.profile`` updates, and leaves the result in the attempt's folder.

    Args:
        request: what the worker is to do.
        trainer: MMF's.
        clock: of the training; it times all phases.
        micro: how many rows go through the model at once.
    """

    def __init__(self, request: AttemptRequest, trainer: Any, clock: Clock, micro: MicroBatch) -> None:
        self._request, self._trainer, self._clock, self._micro = request, trainer, clock, micro
        self._few = few = min(WARM_UP, request.profile // 6)
        self._traced = request.profile - 1 - few
        self._pairs = self._traced - 2 * few
        self._on_gpu = "cuda" in str(trainer.device)
        self._log_at_start = request.log.stat().st_size
        self._laps: list[Lap] = []
        self._memory: dict[str, int] = {}
        self._rows = 0  # of the micro-batch, while it is halved
        self._is_halved = False
        self._trace: Any = None
        self._in_trace = 0.0  # seconds
        self._now = clock.now
        if self._on_gpu:
            clock.now = self._settled

    def updated(self, lap: Lap) -> None:
        """An update is done."""
        self._laps.append(lap)
        done = len(self._laps)
        if self._pairs <= done < self._traced and self._micro.rows == self._micro.batch > 1:
            self._rows, self._micro.rows = self._micro.rows, (self._micro.rows + 1) // 2
        elif self._rows:
            self._micro.rows, self._rows = self._rows, 0
            self._is_halved = True
        if done == self._traced:
            self._memory = self._sizes()  # in fp16, the first updates may overflow, and so make no state
            self._clock.now = self._now  # a GPU is seen at work as it works in training
            self._trace = torch.profiler.profile()
            self._trace.start()
            self._in_trace = -self._now()
        elif done == self._traced + self._few:
            self._in_trace += self._settled() if self._on_gpu else self._now()
            self._trace.stop()
            self._export(self._request.attempt.trace)
        self._clock.lap()  # none of that belongs to an update

    def ended(self) -> None:
        """Training has ended, with a checkpoint and a validation."""
        laps, few = [*self._laps, self._clock.lap()], self._few
        if len(self._laps) < self._request.profile:
            raise UsageError(
                f"training did not begin at update 0, and so made only {len(self._laps)} updates",
                hint="leave out what names a checkpoint",
            )
        measured, pairs = laps[few : self._pairs], laps[self._pairs : self._traced]
        # The first validation imports what only validations need, and decodes images.
        validated = [lap for lap in laps if lap.begun["validation"]][1:]
        workers = int(self._trainer.config.training.num_workers)
        Phases(
            device=torch.cuda.get_device_name() if self._on_gpu else str(self._trainer.device),
            threads=torch.get_num_threads(),
            processors=processors(),
            workers=workers,
            batch=self._micro.batch,
            warm_up=few,
            updates=len(measured),
            traced=few,
            spent=_sums(lap.of_update for lap in measured),
            loading_cpu=None if workers else sum(lap.cpu["data"] for lap in measured),
            a_pass=_a_pass(pairs) if self._is_halved else None,
            saves=sum(lap.begun["checkpoint"] for lap in laps),
            saving=sum(lap.seconds["checkpoint"] for lap in laps),
            validations=sum(lap.begun["validation"] for lap in validated),
            validating=sum(lap.seconds["validation"] for lap in validated),
            gpu_busy=_busy(self._trace.events(), self._in_trace) if self._on_gpu else None,
            memory=self._memory | self._peaks(),
            images_once=decodes_once(self._request, self._trainer),
            log_at_start=self._log_at_start,
        ).save(self._request.attempt.phases)

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

    def _sizes(self) -> dict[str, int]:
        weights = list(self._trainer.model.parameters())
        return {
            "weights": tensor_bytes(weights),
            "gradients": tensor_bytes([weight.grad for weight in weights]),
            "optimizer": tensor_bytes(list(self._trainer.optimizer.state.values())),
        }

    def _peaks(self) -> dict[str, int]:
        found = {"host": peak_memory(), "gpu": torch.cuda.max_memory_allocated() if self._on_gpu else None}
        return {name: peak for name, peak in found.items() if peak is not None}


def _sums(laps: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for lap in laps:
        for phase, seconds in lap.items():
            total[phase] = total.get(phase, 0.0) + seconds
    return total


def _a_pass(laps: Sequence[Lap]) -> float:
    """What a pass costs at least, from updates of which each other has one pass more than the next.

    Other programs make some of them slower, so of the differences one of the smaller is taken.
    """
    spent = [sum(lap.seconds[phase] for phase in _PASS) for lap in laps]
    found = sorted(halved - full for halved, full in zip(spent[::2], spent[1::2], strict=True))
    return min(max(0.0, found[len(found) // 4]), median(spent[1::2]))


def _busy(events: Iterable[Any], seconds: float) -> float | None:
    """The share of some seconds in which a GPU did one of the traced things; None where none was seen.

    Not every system lets torch see what a GPU does.
    """
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False)
    )
    busy, until = 0.0, 0.0
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return min(1.0, busy / 1e6 / seconds) if spans else None


def peak_memory() -> int | None:
    """The most memory that this process has had, in bytes; None where the system does not tell."""
    if sys.platform == "win32":
        return _peak_on_windows()
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _peak_on_windows() -> int | None:
    import ctypes

    # https://learn.microsoft.com/windows/win32/api/psapi/ns-psapi-process_memory_counters
    counters = (ctypes.c_size_t * 10)()  # two DWORDs, and nine numbers of the machine's size
    system: Any = vars(ctypes)["windll"].kernel32
    system.GetCurrentProcess.restype = ctypes.c_void_p
    process = ctypes.c_void_p(system.GetCurrentProcess())
    told = system.K32GetProcessMemoryInfo(process, ctypes.byref(counters), ctypes.sizeof(counters))
    return int(counters[1]) if told else None
