"""Timing of the phases of training, and profiling."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
from mmf_win.records import to_stored

#: A class, the name of a method, and the phase of its calls.
TimedMethod: TypeAlias = tuple[Any, str, str]

_WARM_UP_UPDATES = 5  # not measured, because they initialize what later updates reuse
_MEASURED_UPDATES = 20
_TABLE_ROWS = 15

#: Phases of training that are the same in every version of MMF; ``data`` is the wait for a batch.
TIMED_METHODS: tuple[TimedMethod, ...] = (
    (dataloader._BaseDataLoaderIter, "__next__", "data"),
    (dataloader.DataLoader, "__iter__", "data"),  # starts the DataLoader's workers
    (torch.Tensor, "backward", "backward"),
)


class PhaseTimer:
    """Timer that assigns each second to the innermost open phase.

    Validations and checkpoints are not part of an update; their phases have no inner phases.

    Attributes:
        phase: The innermost open phase.
        seconds: Seconds by phase of the updates since :meth:`restart`; ``other`` is the time outside of
            phases.
        data_cpu_seconds: CPU seconds of this thread in the phase ``data``.
        excluded_seconds: Seconds of each validation and each checkpoint so far.
        waits_for_gpu: Wait at the end of each phase for the GPU work that was started in it.
        measures_gpu_waits: Measure waits for data with the GPU's clock. The GPU continues to work while its
            process waits, so the clock of the process also counts time that is not lost.
    """

    def __init__(self) -> None:
        self.phase = "other"
        self.excluded_seconds: dict[str, list[float]] = {"validation": [], "checkpoint": []}
        self.waits_for_gpu = self.measures_gpu_waits = False
        self.restart()

    def restart(self) -> None:
        """Reset the seconds of the updates."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.data_cpu_seconds = 0.0
        self._gpu_waits: list[tuple[Any, Any]] = []
        self._last_reading = self._read_clocks()

    @contextmanager
    def time_phase(self, phase: str) -> Iterator[None]:
        """Open a phase in the block; also usable as a decorator."""
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
        """Time all calls of the methods from now on."""
        for owner, name, phase in methods:
            setattr(owner, name, self.time_phase(phase)(getattr(owner, name)))

    def measure_data_wait(self, trainer: Any, updates: int, world_size: int) -> DataWaitStats:
        """Compute the mean wait for data of the updates since :meth:`restart`.

        Args:
            trainer: MMF's trainer.
            updates: The number of updates since :meth:`restart`.
            world_size: The number of processes that share the CPUs.

        Returns:
            Seconds per update, and the number of workers and CPUs.
        """
        self._charge(self.phase)
        workers = int(trainer.config.training.num_workers)
        load_seconds = wait_seconds = self.seconds["data"] / updates
        if self.measures_gpu_waits:
            torch.cuda.synchronize()
            wait_seconds = sum(begin.elapsed_time(end) for begin, end in self._gpu_waits) / 1000 / updates
        return DataWaitStats(
            wait_s=wait_seconds,
            update_s=sum(self.seconds.values()) / updates,
            workers=workers,
            threads=1 if trainer.device.type == "cuda" else torch.get_num_threads(),
            processors=max(1, available_cpus() // world_size),
            batch_s=load_seconds,
            batch_cpu_s=None if workers else self.data_cpu_seconds / updates,
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
    """One measurement of the data wait of the updates after warm-up, in one of ``world_size`` processes."""

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
        """Count an update; return the measurement after the last measured one."""
        self._updates += 1
        if self._updates == self._warm_up_updates:
            self._timer.restart()
        if self._updates != self._warm_up_updates + self._measured_updates:
            return None
        waiting = self._timer.measure_data_wait(self._trainer, self._measured_updates, self._world_size)
        self._timer.measures_gpu_waits = False
        return waiting


class Profiler(DataWaitProfiler):
    """Profiler of a training of ``request.profile_updates`` updates, of which it traces some of the last.

    ::

        warm-up │ measured │ warm-up of the trace │ traced │ the last update, a checkpoint, a validation
    """

    def __init__(self, request: AttemptRequest, trainer: Any, timer: PhaseTimer) -> None:
        warm_up = min(_WARM_UP_UPDATES, request.profile_updates // 6)
        super().__init__(trainer, timer, 1, warm_up, request.profile_updates - 2 * warm_up - 2)
        timer.waits_for_gpu = self._on_gpu = timer.measures_gpu_waits
        self._request, self._results = request, dict[str, Any]()
        wait = warm_up + self._measured_updates
        schedule = torch.profiler.schedule(wait=wait, warmup=1, active=warm_up, repeat=1)
        self._torch_profiler = torch.profiler.profile(schedule=schedule, on_trace_ready=self._write_trace)
        self._torch_profiler.start()

    def on_update_end(self) -> None:
        """Count an update."""
        if (waiting := super().on_update_end()) is not None:
            phase_seconds = {phase: seconds / self._measured_updates for phase, seconds in self._timer.seconds.items()}
            self._results = {"waiting": to_stored(waiting), "spent": phase_seconds}
            self._timer.waits_for_gpu = False  # the trace shows the GPU as in ordinary training
        self._torch_profiler.step()

    def finish(self) -> dict[str, Any]:
        """Return the measurements after a training that ended with a checkpoint and a validation.

        Raises:
            UsageError: The training started from a checkpoint and made fewer updates.
        """
        self._torch_profiler.stop()
        if self._updates < self._request.profile_updates:
            message = f"training did not start at update 0 and made only {self._updates} updates"
            raise UsageError(message, hint="remove the settings that name a checkpoint")
        excluded = self._timer.excluded_seconds
        # The first validation also imports modules and decodes images. In 1.0.0rc12, it is the only one after
        # an odd number of updates.
        validations = excluded["validation"][1:] or excluded["validation"]
        means = {"checkpoint": fmean(excluded["checkpoint"]), "validation": fmean(validations)}
        return self._results | means | {"images_once": is_image_cache_used(self._request, self._trainer)}

    def _write_trace(self, trace: Any) -> None:
        busy_share = gpu_busy_share(trace.events()) if self._on_gpu else None
        if busy_share is not None:  # waiting for the GPU after each phase makes it seem less busy
            waiting = self._results["waiting"]
            waiting["waited"] = min(waiting["waited"], (1 - busy_share) * waiting["update"])
        order = f"self_{'cuda' if self._on_gpu else 'cpu'}_time_total"
        table = trace.key_averages().table(sort_by=order, row_limit=_TABLE_ROWS)
        self._results |= {"gpu_busy": busy_share, "table": table}
        previous_dir, file = Path.cwd(), self._request.folder.trace
        os.chdir(file.parent)  # on Windows, torch cannot write to folders outside the code page
        try:
            trace.export_chrome_trace(file.name)
        finally:
            os.chdir(previous_dir)


def gpu_busy_share(events: Iterable[Any]) -> float | None:
    """Return the share of the traced updates in which the GPU ran a kernel.

    ``None`` if the trace has no kernel: torch cannot observe the GPU on every system.
    """
    kernels = updates = 0.0
    for event in events:
        if event.name.startswith("ProfilerStep") and event.device_type.name == "CPU":
            updates += event.time_range.elapsed_us()
        elif event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False):
            kernels += event.time_range.elapsed_us()
    return min(1.0, kernels / updates) if kernels else None


def is_image_cache_used(request: AttemptRequest, trainer: Any) -> bool:
    """Return whether images are decoded in the first epoch and cached for the others."""
    uses_images = OmegaConf.select(trainer.config, "dataset_config.hateful_memes.use_images")
    return request.image_cache_dir is not None and bool(uses_images)
