"""Assignment of seconds to phases, with a fake clock."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.worlds.tools import LazyModule, requires_package

timing = LazyModule("mmf_win.worker.hooks.phase_timer")

pytestmark = [pytest.mark.torch, requires_package("torch")]


class FakeClock:
    """Clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "thread_time", lambda: clock.now / 2)
    return clock


@pytest.fixture
def timer(clock: FakeClock) -> Any:
    return timing.PhaseTimer()


def test_outer_phase_excludes_the_time_of_inner_phases(timer: Any, clock: FakeClock) -> None:
    clock.now = 1
    with timer.time_phase("optimizer"):
        clock.now = 3
        with timer.time_phase("backward"):
            clock.now = 7
        clock.now = 15
    clock.now = 31
    with timer.time_phase("forward"):
        pass
    assert timer.seconds == {"other": 1 + 16, "optimizer": 2 + 8, "backward": 4, "forward": 0}


def test_validation_includes_the_time_of_inner_phases(timer: Any, clock: FakeClock) -> None:
    with timer.time_phase("logging"):
        with timer.time_phase("validation"), timer.time_phase("forward"):
            clock.now = 5
        clock.now = 6
    assert timer.excluded_seconds == {"validation": [5], "checkpoint": []}
    assert timer.seconds == {"other": 0, "logging": 1}


def test_restart_within_a_phase_keeps_validations(timer: Any, clock: FakeClock) -> None:
    with timer.time_phase("logging"):
        with timer.time_phase("validation"):
            clock.now = 2
        clock.now = 3
        timer.restart()
        clock.now = 6
    assert timer.seconds == {"logging": 3}
    assert timer.excluded_seconds["validation"] == [2]


def test_methods_that_raise_are_timed(timer: Any, clock: FakeClock) -> None:
    class Loader:
        def __next__(self) -> int:
            clock.now += 1
            raise StopIteration

        def __iter__(self) -> Loader:
            return self

    timer.time_methods([(Loader, "__next__", "data")])
    assert list(Loader()) == []
    assert (timer.seconds["data"], timer.data_cpu_seconds, timer.phase) == (1, 0.5, "other")
