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
TimedMethod: TypeAlias = tuple[Any, str, str]

_WARM_UP_UPDATES = 5  # updates that are not measured, because they start what later ones find ready
_MEASURED_UPDATES = 20
_TABLE_ROWS = 15

#: The phases of training that are the same in every MMF; ``data`` is the wait for a batch.
TIMED_METHODS: tuple[TimedMethod, ...] = (
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
        self.excluded_seconds: dict[str, list[float]] = {"validation": [], "checkpoint": []}
        self.waits_for_gpu = self.measures_gpu_waits = False
        self.restart()

    def restart(self) -> None:
        """Forget what the updates so far took."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.data_cpu_seconds = 0.0
        self._gpu_waits: list[tuple[Any, Any]] = []
        self._last_reading = self._read_clocks()

    @contextmanager
    def time_phase(self, phase: str) -> Iterator[None]:
        """Open a phase; also decorates a function of which each call is one."""
        outer = self.phase
        if outer in self.excluded_seconds:
            yield
            return
        self._charge(phase)
        try:
            with torch.profiler.record_function(phase):
                yield
        finally:
            self._charge(outer)

    def time_methods(self, methods: Iterable[TimedMethod]) -> None:
        """Time each call of some methods from now on."""
        for owner, name, phase in methods:
            setattr(owner, name, self.time_phase(phase)(getattr(owner, name)))

    def measure_data_wait(self, trainer: Any, updates: int, world_size: int) -> DataWaitStats:
        """Return how long each of the ``updates`` since :meth:`restart` waited for its rows.

        The processors are shared by ``ranks`` processes.
        """
        self._charge(self.phase)
        workers = int(trainer.config.training.num_workers)
        making = waited = self.seconds["data"] / updates
        if self.measures_gpu_waits:
            torch.cuda.synchronize()
            waited = sum(begin.elapsed_time(end) for begin, end in self._gpu_waits) / 1000 / updates
        return DataWaitStats(
            waited=waited,
            update=sum(self.seconds.values()) / updates,
            workers=workers,
            threads=1 if trainer.device.type == "cuda" else torch.get_num_threads(),
            processors=max(1, available_cpus() // world_size),
            making=making,
            cpu=None if workers else self.data_cpu_seconds / updates,
        )

    def _read_clocks(self) -> tuple[float, float, Any]:
        event: Any = None
        if self.measures_gpu_waits:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
        return time.perf_counter(), time.thread_time(), event

    def _charge(self, phase: str) -> None:
        if self.waits_for_gpu:
            torch.cuda.synchronize()
        (since, cpu_since, begin), self._last_reading = self._last_reading, self._read_clocks()
        now, cpu, end = self._last_reading
        if self.phase in self.excluded_seconds:
            self.excluded_seconds[self.phase].append(now - since)
        else:
            self.seconds[self.phase] += now - since
        if self.phase == "data":
            self.data_cpu_seconds += cpu - cpu_since
            self._gpu_waits += [(begin, end)] if begin and end else []
        self.phase = phase


class DataWaitProfiler:
    """Measures once how long the updates after the first few wait for data, in one of ``ranks`` processes."""

    def __init__(
        self,
        trainer: Any,
        timer: PhaseTimer,
        world_size: int,
        warm_up_updates: int = _WARM_UP_UPDATES,
        measured_updates: int = _MEASURED_UPDATES,
    ) -> None:
        self._trainer, self._timer, self._world_size = trainer, timer, world_size
        self._warm_up_updates, self._measured_updates, self._updates = warm_up_updates, measured_updates, 0
        timer.measures_gpu_waits = trainer.device.type == "cuda"

    def on_update_end(self) -> DataWaitStats | None:
        """Count an update; return what was measured after the last one that is."""
        self._updates += 1
        if self._updates == self._warm_up_updates:
            self._timer.restart()
        if self._updates != self._warm_up_updates + self._measured_updates:
            return None
        waiting = self._timer.measure_data_wait(self._trainer, self._measured_updates, self._world_size)
        self._timer.measures_gpu_waits = False
        return waiting


class Profiler(DataWaitProfiler):
    """Measures a training of ``request.profile_updates`` updates, and traces a few of the last.

    ::

        warm-up │ measured │ warm-up of the trace │ traced │ the last update, a checkpoint, a validation
    """

    def __init__(self, request: AttemptRequest, trainer: Any, timer: PhaseTimer) -> None:
        few = min(_WARM_UP_UPDATES, request.profile_updates // 6)
        super().__init__(trainer, timer, 1, few, request.profile_updates - 2 * few - 2)
        timer.waits_for_gpu = self._on_gpu = timer.measures_gpu_waits
        self._request, self._results = request, dict[str, Any]()
        schedule = torch.profiler.schedule(wait=few + self._measured_updates, warmup=1, active=few, repeat=1)
        self._torch_profiler = torch.profiler.profile(schedule=schedule, on_trace_ready=self._write_trace)
        self._torch_profiler.start()

    def on_update_end(self) -> None:
        """Count an update."""
        if (waiting := super().on_update_end()) is not None:
            spent = {
                phase: seconds / self._measured_updates for phase, seconds in self._timer.seconds.items()
            }
            self._results = {"waiting": asdict(waiting), "spent": spent}
            self._timer.waits_for_gpu = False  # in the trace, a GPU works as it does in training
        self._torch_profiler.step()

    def finish(self) -> dict[str, Any]:
        """Return what was measured, when training has ended with a checkpoint and a validation."""
        self._torch_profiler.stop()
        if self._updates < self._request.profile_updates:
            message = f"training did not begin at update 0, and so made only {self._updates} updates"
            raise UsageError(message, hint="leave out what names a checkpoint")
        times = self._timer.excluded_seconds
        # The first validation imports what only validations need, and decodes images. In 1.0.0rc12 no other
        # one follows an odd number of updates.
        validations = times["validation"][1:] or times["validation"]
        aside = {"checkpoint": fmean(times["checkpoint"]), "validation": fmean(validations)}
        return self._results | aside | {"images_once": is_image_cache_used(self._request, self._trainer)}

    def _write_trace(self, trace: Any) -> None:
        busy = gpu_busy_share(trace.events()) if self._on_gpu else None
        if busy is not None:  # a GPU that is waited for after each phase seems to have less to do
            waiting = self._results["waiting"]
            waiting["waited"] = min(waiting["waited"], (1 - busy) * waiting["update"])
        order = f"self_{'cuda' if self._on_gpu else 'cpu'}_time_total"
        table = trace.key_averages().table(sort_by=order, row_limit=_TABLE_ROWS)
        self._results |= {"gpu_busy": busy, "table": table}
        here, file = Path.cwd(), self._request.folder.trace
        os.chdir(file.parent)  # on Windows, torch cannot write to a folder that the code page cannot name
        try:
            trace.export_chrome_trace(file.name)
        finally:
            os.chdir(here)


def gpu_busy_share(events: Iterable[Any]) -> float | None:
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


def is_image_cache_used(request: AttemptRequest, trainer: Any) -> bool:
    """Return whether images are decoded in the first epoch and kept for the others."""
    uses = OmegaConf.select(trainer.config, "dataset_config.hateful_memes.use_images")
    return request.image_cache_dir is not None and bool(uses)
