"""Times the phases of training, and measures a training that is profiled."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import torch
from omegaconf import OmegaConf
from torch.utils.data import dataloader

from mmf_win.errors import UsageError
from mmf_win.machine import available_cpus
from mmf_win.protocol import AttemptRequest
from mmf_win.protocol.data_wait import DataWaitStats

#: A class, the name of a method, and the phase that each call of the method is.
Timed: TypeAlias = tuple[Any, str, str]

_WARM_UP = 5  # updates that are not measured, because they start what later ones find ready
_MEASURED = 20
_TABLE_ROWS = 15

#: The phases of training that are the same in every MMF; ``data`` is the wait for a batch.
TIMED: tuple[Timed, ...] = (
    (dataloader._BaseDataLoaderIter, "__next__", "data"),
    (dataloader.DataLoader, "__iter__", "data"),  # starts the DataLoader's workers
    (torch.Tensor, "backward", "backward"),
)


class PhaseTimer:
    """Charges each second to the innermost open phase.

    Validations and checkpoints are no part of an update: their phases have no inner ones.

    Attributes:
        phase: the innermost open phase.
        seconds: the seconds of an update's phases since :meth:`restart`; ``other`` is outside of all phases.
        data_cpu: the seconds of ``data`` in which this thread ran.
        aside: the seconds of each validation and each checkpoint so far.
        waits_for_gpu: whether work that a phase gave to a GPU has to end in that phase.
        asks_gpu: whether a GPU measures its own waits for data. It works on while its process waits, so the
            process's clock counts time that is not lost.
    """

    def __init__(self) -> None:
        self.phase = "other"
        self.aside: dict[str, list[float]] = {"validation": [], "checkpoint": []}
        self.waits_for_gpu = self.asks_gpu = False
        self.restart()

    def restart(self) -> None:
        """Forget what the updates so far took."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.data_cpu = 0.0
        self._gpu_waits: list[tuple[Any, Any]] = []
        self._last = self._read()

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Open a phase; also decorates a function of which each call is one."""
        outer = self.phase
        if outer in self.aside:
            yield
            return
        self._charge(phase)
        try:
            with torch.profiler.record_function(phase):
                yield
        finally:
            self._charge(outer)

    def time(self, methods: Iterable[Timed]) -> None:
        """Time each call of some methods from now on."""
        for owner, name, phase in methods:
            setattr(owner, name, self.during(phase)(getattr(owner, name)))

    def measure_waiting(self, trainer: Any, updates: int, ranks: int) -> DataWaitStats:
        """Return how long each of the ``updates`` since :meth:`restart` waited for its rows.

        The processors are shared by ``ranks`` processes.
        """
        self._charge(self.phase)
        workers = int(trainer.config.training.num_workers)
        making = waited = self.seconds["data"] / updates
        if self.asks_gpu:
            torch.cuda.synchronize()
            waited = sum(begin.elapsed_time(end) for begin, end in self._gpu_waits) / 1000 / updates
        return DataWaitStats(
            waited=waited,
            update=sum(self.seconds.values()) / updates,
            workers=workers,
            threads=1 if trainer.device.type == "cuda" else torch.get_num_threads(),
            processors=max(1, available_cpus() // ranks),
            making=making,
            cpu=None if workers else self.data_cpu / updates,
        )

    def _read(self) -> tuple[float, float, Any]:
        event: Any = None
        if self.asks_gpu:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
        return time.perf_counter(), time.thread_time(), event

    def _charge(self, phase: str) -> None:
        if self.waits_for_gpu:
            torch.cuda.synchronize()
        (since, cpu_since, begin), self._last = self._last, self._read()
        now, cpu, end = self._last
        if self.phase in self.aside:
            self.aside[self.phase].append(now - since)
        else:
            self.seconds[self.phase] += now - since
        if self.phase == "data":
            self.data_cpu += cpu - cpu_since
            self._gpu_waits += [(begin, end)] if begin and end else []
        self.phase = phase


class WaitWatch:
    """Measures once how long the updates after the first few wait for data, in one of ``ranks`` processes."""

    def __init__(
        self, trainer: Any, timer: PhaseTimer, ranks: int, warm_up: int = _WARM_UP, measured: int = _MEASURED
    ) -> None:
        self._trainer, self._timer, self._ranks = trainer, timer, ranks
        self._warm_up, self._measured, self._updates = warm_up, measured, 0
        timer.asks_gpu = trainer.device.type == "cuda"

    def updated(self) -> DataWaitStats | None:
        """Count an update; return what was measured after the last one that is."""
        self._updates += 1
        if self._updates == self._warm_up:
            self._timer.restart()
        if self._updates != self._warm_up + self._measured:
            return None
        waiting = self._timer.measure_waiting(self._trainer, self._measured, self._ranks)
        self._timer.asks_gpu = False
        return waiting


class Profiler(WaitWatch):
    """Measures a training of ``request.profile_updates`` updates, and traces a few of the last.

    ::

        warm-up │ measured │ warm-up of the trace │ traced │ the last update, a checkpoint, a validation
    """

    def __init__(self, request: AttemptRequest, trainer: Any, timer: PhaseTimer) -> None:
        few = min(_WARM_UP, request.profile_updates // 6)
        super().__init__(trainer, timer, 1, few, request.profile_updates - 2 * few - 2)
        timer.waits_for_gpu = self._on_gpu = timer.asks_gpu
        self._request, self._told = request, dict[str, Any]()
        schedule = torch.profiler.schedule(wait=few + self._measured, warmup=1, active=few, repeat=1)
        self._trace = torch.profiler.profile(schedule=schedule, on_trace_ready=self._write)
        self._trace.start()

    def updated(self) -> None:
        """Count an update."""
        if (waiting := super().updated()) is not None:
            spent = {phase: seconds / self._measured for phase, seconds in self._timer.seconds.items()}
            self._told = {"waiting": asdict(waiting), "spent": spent}
            self._timer.waits_for_gpu = False  # in the trace, a GPU works as it does in training
        self._trace.step()

    def ended(self) -> dict[str, Any]:
        """Return what was measured, when training has ended with a checkpoint and a validation."""
        self._trace.stop()
        if self._updates < self._request.profile_updates:
            message = f"training did not begin at update 0, and so made only {self._updates} updates"
            raise UsageError(message, hint="leave out what names a checkpoint")
        times = self._timer.aside
        # The first validation imports what only validations need, and decodes images. In 1.0.0rc12 no other
        # one follows an odd number of updates.
        validations = times["validation"][1:] or times["validation"]
        aside = {"checkpoint": fmean(times["checkpoint"]), "validation": fmean(validations)}
        return self._told | aside | {"images_once": decodes_once(self._request, self._trainer)}

    def _write(self, trace: Any) -> None:
        busy = gpu_share(trace.events()) if self._on_gpu else None
        if busy is not None:  # a GPU that is waited for after each phase seems to have less to do
            waiting = self._told["waiting"]
            waiting["waited"] = min(waiting["waited"], (1 - busy) * waiting["update"])
        order = f"self_{'cuda' if self._on_gpu else 'cpu'}_time_total"
        table = trace.key_averages().table(sort_by=order, row_limit=_TABLE_ROWS)
        self._told |= {"gpu_busy": busy, "table": table}
        here, file = Path.cwd(), self._request.folder.trace
        os.chdir(file.parent)  # on Windows, torch cannot write to a folder that the code page cannot name
        try:
            trace.export_chrome_trace(file.name)
        finally:
            os.chdir(here)


def gpu_share(events: Iterable[Any]) -> float | None:
    """Return the share of the traced updates in which a GPU ran a kernel.

    None without a kernel in the trace: not every system lets torch see what a GPU does.
    """
    kernels = updates = 0.0
    for event in events:
        if event.name.startswith("ProfilerStep") and event.device_type.name == "CPU":
            updates += event.time_range.elapsed_us()
        elif event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False):
            kernels += event.time_range.elapsed_us()
    return min(1.0, kernels / updates) if kernels else None


def decodes_once(request: AttemptRequest, trainer: Any) -> bool:
    """Return whether images are decoded in the first epoch and kept for the others."""
    uses = OmegaConf.select(trainer.config, "dataset_config.hateful_memes.use_images")
    return request.image_cache_dir is not None and bool(uses)
