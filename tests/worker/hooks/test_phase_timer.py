"""Which phase each second is charged to, by a clock that stands still."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.worlds.tools import LazyModule, requires_package

timing = LazyModule("mmf_win.worker.hooks.phase_timer")

pytestmark = [pytest.mark.torch, requires_package("torch")]


class Hand:
    """A clock's hand, which the test moves."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    hand = Hand()
    monkeypatch.setattr(time, "perf_counter", hand)
    monkeypatch.setattr(time, "thread_time", lambda: hand.at / 2)
    return hand


@pytest.fixture
def timer(hand: Hand) -> Any:
    return timing.PhaseTimer()


def test_the_time_of_an_inner_phase_is_not_in_the_outer(timer: Any, hand: Hand) -> None:
    hand.at = 1
    with timer.time_phase("optimizer"):
        hand.at = 3
        with timer.time_phase("backward"):
            hand.at = 7
        hand.at = 15
    hand.at = 31
    with timer.time_phase("forward"):
        pass
    assert timer.seconds == {"other": 1 + 16, "optimizer": 2 + 8, "backward": 4, "forward": 0}


def test_what_a_validation_does_is_the_validations(timer: Any, hand: Hand) -> None:
    with timer.time_phase("logging"):
        with timer.time_phase("validation"), timer.time_phase("forward"):
            hand.at = 5
        hand.at = 6
    assert timer.excluded_seconds == {"validation": [5], "checkpoint": []}
    assert timer.seconds == {"other": 0, "logging": 1}


def test_it_may_restart_within_a_phase_and_keeps_validations(timer: Any, hand: Hand) -> None:
    with timer.time_phase("logging"):
        with timer.time_phase("validation"):
            hand.at = 2
        hand.at = 3
        timer.restart()
        hand.at = 6
    assert timer.seconds == {"logging": 3}
    assert timer.excluded_seconds["validation"] == [2]


def test_methods_are_timed_also_where_they_raise(timer: Any, hand: Hand) -> None:
    class Loader:
        def __next__(self) -> int:
            hand.at += 1
            raise StopIteration

        def __iter__(self) -> Loader:
            return self

    timer.time_methods([(Loader, "__next__", "data")])
    assert list(Loader()) == []
    assert (timer.seconds["data"], timer.data_cpu_seconds, timer.phase) == (1, 0.5, "other")
