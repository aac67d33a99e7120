"""What a training finds out about its waiting, from laps of a fake clock, and about a GPU, from a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from mmf_win.protocol import Attempt, read_events
from mmf_win.protocol.data_wait import Waiting
from mmf_win.worker.stopping import Stop
from tests.worlds.event_log import EventLog
from tests.worlds.tools import LazyModule, requires_package

torch = LazyModule("torch")
timing = LazyModule("mmf_win.worker.hooks.clock")
profiler = LazyModule("mmf_win.worker.hooks.profiler")
observing = LazyModule("mmf_win.worker.hooks.observer")

pytestmark = [pytest.mark.torch, requires_package("torch")]


def watch(workers: int, device: str, clock: Any) -> Any:
    """Of a training."""
    training = SimpleNamespace(num_workers=workers)
    trainer = SimpleNamespace(device=torch.device(device), config=SimpleNamespace(training=training))
    return profiler.WaitWatch(trainer, clock, 1)


def lap(data: float, cpu: float = 0.0) -> Any:
    """An update of which the model works for a second; a validation fell into it."""
    found = timing.Lap()
    found.seconds.update(data=data, other=1.0, validation=50.0)
    found.cpu.update(data=cpu)
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_it_speaks_once_of_the_updates_after_the_first_five(workers: int) -> None:
    watching = watch(workers, "cpu", timing.Clock())
    told = [watching.updated(lap(100.0)) for _ in range(5)]
    told += [watching.updated(lap(3.0, 0.5)) for _ in range(25)]
    assert [update for update, waiting in enumerate(told, start=1) if waiting] == [25]
    waiting = told[24]
    assert isinstance(waiting, Waiting)
    assert (waiting.waited, waiting.update, waiting.workers) == (3.0, 4.0, workers)
    assert waiting.cpu == (None if workers else 0.5)


MUCH = Waiting(waited=0.6, update=1.0, workers=0, threads=1, processors=8, making=0.6, cpu=0.6)


@pytest.mark.parametrize(
    ("waiting", "epoch", "failed", "said"),
    [
        (MUCH, 2, {}, ""),
        (MUCH, 1, {}, ", and less once all images are decoded"),
        (MUCH, 2, {"micro_batch": 4}, ""),
        (MUCH, 2, {"workers": 1}, None),  # memory ran out with more
        (replace(MUCH, waited=0.1), 2, {}, None),
        (replace(MUCH, processors=1), 2, {}, None),
    ],
)
def test_it_is_noted_if_workers_may_help(
    user_dir: Path, waiting: Waiting, epoch: int, failed: dict[str, int], said: str | None
) -> None:
    attempt = user_dir / "attempts" / "2"
    attempt.mkdir(parents=True)
    request = Attempt("train", "m", "mmf", str(attempt), images="kept")
    EventLog(request.events, "1").write("attempt_failed", next=failed)
    observer = observing.Observer(request, Stop(attempt / "stop"))
    config = OmegaConf.create({"dataset_config": {"hateful_memes": {"use_images": True}}})
    observer.trainer = SimpleNamespace(current_epoch=epoch, config=config)
    observer._note(waiting)
    notes = [event["text"] for event in read_events(request.events) if event["kind"] == "note"]
    told = f"the model waits for data 60 % of the time{said}: training.num_workers=2 may help"
    assert notes == ([] if said is None else [told])


class FakeEvent:
    """Of a GPU whose time passes as ``now`` says."""

    now = 0.0

    def __init__(self) -> None:
        self.at = -1.0

    def record(self) -> None:
        self.at = FakeEvent.now

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1000 * (end.at - self.at)


def test_a_gpu_waits_while_it_has_nothing_to_do_and_validates_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: FakeEvent())
    clock = timing.Clock()
    watching = watch(0, "cuda", clock)

    def load(seconds: float) -> None:
        with clock.during("data"):
            FakeEvent.now += seconds

    for update in range(25):
        load(100.0 if update < 5 else 2.0)
        FakeEvent.now += 1.0
        with clock.during("validation"):
            load(4.0)
        waiting = watching.updated(clock.lap())
    assert waiting is not None and waiting.waited == 2.0
    assert not clock.lap().waits and clock.gpu_event is None, "nothing is measured any more"


def test_a_gpu_is_busy_while_a_kernel_runs() -> None:
    cuda, cpu = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
    spans = [(cuda, 20, False), (cpu, 1000, False), (cuda, 30, False), (cuda, 500, True)]
    events = [
        SimpleNamespace(
            device_type=device,
            time_range=SimpleNamespace(elapsed_us=lambda us=us: us),
            is_user_annotation=named,
        )
        for device, us, named in spans
    ]
    assert profiler.gpu_share(events, 100e-6) == pytest.approx(0.5)
    assert profiler.gpu_share(events, 40e-6) == 1
    assert profiler.gpu_share(events[1:2], 100e-6) is None, "torch cannot see it here"
