"""To which phase each second belongs, by a clock that stands still."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.worlds.tools import LazyModule

timing = LazyModule("mmf_win.worker.hooks.clock")


class Hand:
    """A clock's hand, which the test moves."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    hand = Hand()
    monkeypatch.setattr(time, "thread_time", lambda: hand.at / 2)
    return hand


@pytest.fixture
def clock(hand: Hand) -> Any:
    clock = timing.Clock()
    clock.now = hand
    clock.lap()
    return clock


def test_the_time_of_an_inner_phase_is_not_in_the_outer(clock: Any, hand: Hand) -> None:
    hand.at = 1
    with clock.during("optimizer"):
        hand.at = 3
        with clock.during("backward"):
            hand.at = 7
        hand.at = 15
    hand.at = 31
    lap = clock.lap()
    assert lap.seconds == {"other": 1 + 16, "optimizer": 2 + 8, "backward": 4}
    assert lap.cpu == {"other": 17 / 2, "optimizer": 10 / 2, "backward": 4 / 2}
    assert lap.begun == {"optimizer": 1, "backward": 1}


def test_what_a_validation_does_is_the_validations(clock: Any, hand: Hand) -> None:
    with clock.during("logging"):
        with clock.during("validation"), clock.during("forward"):
            hand.at = 5
        hand.at = 6
    lap = clock.lap()
    assert lap.seconds["validation"] == 5
    assert lap.of_update == {"other": 0, "logging": 1}
    assert lap.begun == {"logging": 1, "validation": 1}


def test_a_lap_may_end_within_a_phase(clock: Any, hand: Hand) -> None:
    with clock.during("logging"):
        hand.at = 2
        assert clock.lap().seconds["logging"] == 2
        hand.at = 5
    lap = clock.lap()
    assert lap.seconds["logging"] == 3
    assert lap.begun == {}


def test_methods_are_timed_also_where_they_raise(clock: Any, hand: Hand) -> None:
    class Loader:
        def __next__(self) -> int:
            hand.at += 1
            raise StopIteration

        def __iter__(self) -> Loader:
            return self

    clock.time([(Loader, "__next__", "data")])
    assert list(Loader()) == []
    assert clock.lap().seconds["data"] == 1
