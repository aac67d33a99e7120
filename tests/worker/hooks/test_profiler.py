"""Measurement of the data wait with a fake clock, and of the GPU from a trace."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from mmf_win.protocol import AttemptRequest, read_events
from mmf_win.protocol.attempt import ProfileTask, TrainTask
from mmf_win.protocol.data_wait import DataWaitStats
from mmf_win.worker.stop_signal import StopSignal
from tests.worlds.event_log import EventLog
from tests.worlds.tools import LazyModule, requires_package

torch = LazyModule("torch")
timing = LazyModule("mmf_win.worker.hooks.phase_timer")
observing = LazyModule("mmf_win.worker.hooks.observer")
session = LazyModule("mmf_win.worker.hooks.session")

pytestmark = [pytest.mark.torch, requires_package("torch")]


def fake_trainer(workers: int, device: str) -> SimpleNamespace:
    """Return the parts of MMF's trainer that the measurement uses."""
    training = SimpleNamespace(num_workers=workers)
    return SimpleNamespace(device=torch.device(device), config=SimpleNamespace(training=training))


@pytest.mark.parametrize("workers", [0, 2])
def test_data_wait_is_measured_once_after_the_warm_up(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "thread_time", lambda: now[0] / 4)
    timer = timing.PhaseTimer()
    profiler = timing.DataWaitProfiler(fake_trainer(workers, "cpu"), timer, 1)
    results = []
    for update in range(1, 51):
        with timer.time_phase("data"):
            now[0] += 3.0 if update > 5 else 100.0
        with timer.time_phase("validation"):
            now[0] += 50.0
        now[0] += 1.0  # computing has no phase unless a training is profiled
        results.append(profiler.on_update_end())
    assert [update for update, waiting in enumerate(results, start=1) if waiting] == [25]
    waiting = results[24]
    assert isinstance(waiting, DataWaitStats)
    assert (waiting.wait_s, waiting.update_s, waiting.workers) == (3.0, 4.0, workers)
    assert waiting.batch_cpu_s == (None if workers else 0.75)


@pytest.mark.parametrize(("validations", "seconds"), [([5.0], 5.0), ([5.0, 1.0, 3.0], 2.0)])
def test_first_validation_only_counts_if_it_is_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validations: list[float], seconds: float
) -> None:
    monkeypatch.setattr(torch.profiler, "profile", lambda **_: SimpleNamespace(start=int, step=int, stop=int))
    timer, trainer = timing.PhaseTimer(), fake_trainer(0, "cpu")
    trainer.config = OmegaConf.create({"training": {"num_workers": 0}})
    profiler = timing.Profiler(AttemptRequest(ProfileTask(updates=7), "m", "mmf", str(tmp_path)), trainer, timer)
    for _ in range(7):
        profiler.on_update_end()
    timer.excluded_seconds |= {"checkpoint": [1.0], "validation": validations}
    assert profiler.finish()["validation"] == seconds


LONG_WAIT = DataWaitStats(wait_s=0.6, update_s=1.0, workers=0, threads=1, processors=8, batch_s=0.6, batch_cpu_s=0.6)


@pytest.mark.parametrize(
    ("waiting", "epoch", "failed", "remark"),
    [
        (LONG_WAIT, 2, {}, ""),
        (LONG_WAIT, 1, {}, ", less once all images are decoded"),
        (LONG_WAIT, 2, {"micro_batch": 4}, ""),
        (LONG_WAIT, 2, {"workers": 1}, None),  # more workers had run out of memory
        (replace(LONG_WAIT, wait_s=0.1), 2, {}, None),
        (replace(LONG_WAIT, processors=1), 2, {}, None),
    ],
)
def test_note_recommends_workers_if_they_may_help(
    user_dir: Path, waiting: DataWaitStats, epoch: int, failed: dict[str, int], remark: str | None
) -> None:
    attempt = user_dir / "attempts" / "2"
    attempt.mkdir(parents=True)
    request = AttemptRequest(TrainTask(), "m", "mmf", str(attempt), image_cache_dir="kept")
    EventLog(request.events, "1").write("attempt_failed", next=failed)
    observer = observing.Observer(request, StopSignal(attempt / "stop"))
    config = OmegaConf.create({"dataset_config": {"hateful_memes": {"use_images": True}}})
    session.report_data_wait(observer, SimpleNamespace(current_epoch=epoch, config=config), waiting)
    notes = [event["text"] for event in read_events(request.events) if event["kind"] == "note"]
    note = f"the model waits for data 60 % of the time{remark}: training.num_workers=2 may help"
    assert notes == ([] if remark is None else [note])


class FakeEvent:
    """Event of a GPU whose time is ``now``."""

    now = 0.0

    def __init__(self) -> None:
        self.at = -1.0

    def record(self) -> None:
        self.at = FakeEvent.now

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1000 * (end.at - self.at)


def test_gpu_wait_excludes_validation_and_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: FakeEvent())
    timer = timing.PhaseTimer()
    profiler = timing.DataWaitProfiler(fake_trainer(0, "cuda"), timer, 1)

    def load(seconds: float) -> None:
        with timer.time_phase("data"):
            FakeEvent.now += seconds

    for update in range(25):
        load(100.0 if update < 5 else 2.0)
        FakeEvent.now += 1.0
        with timer.time_phase("validation"):
            load(4.0)
        waiting = profiler.on_update_end()
    assert waiting is not None and waiting.wait_s == 2.0
    assert not timer.measures_gpu_waits, "the measurement must end"


def test_gpu_busy_share_counts_kernels() -> None:
    cuda, cpu = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU

    def make_span(device: Any, name: str, us: float, named: bool = False) -> SimpleNamespace:
        time_range = SimpleNamespace(elapsed_us=lambda: us)
        return SimpleNamespace(name=name, device_type=device, time_range=time_range, is_user_annotation=named)

    def share(*updates: float) -> float | None:
        steps = [make_span(cpu, f"ProfilerStep#{n}", us) for n, us in enumerate(updates)]
        other = [make_span(cpu, "aten::add", 1000), make_span(cuda, "ProfilerStep#0", 500, named=True)]
        return timing.gpu_busy_share([*steps, *other, *kernels])

    kernels = [make_span(cuda, "add", 20), make_span(cuda, "mul", 30)]
    assert share(60, 40) == pytest.approx(0.5)
    assert share(40) == 1
    kernels.clear()
    assert share(100) is None, "torch cannot observe the GPU"
