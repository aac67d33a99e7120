"""Advice from training profiles with measured values of known bottlenecks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mmf_win.protocol.data_wait import DataWaitStats
from mmf_win.runs.profile_advice import TrainingProfile

MODEL = {"forward": 0.049, "backward": 0.099, "optimizer": 0.033}
MODEL |= {"transfer": 0.0001, "logging": 0.0003, "other": 0.003}
WAITS = "the model waits for data 57 % of the time"


def make_profile(data: float = 0.01, cpu: float | None = 0.01, workers: int = 0, **changes: Any) -> TrainingProfile:
    """Return a profile dominated by the model, with changes.

    Args:
        data: Seconds that an update waits for its rows.
        cpu: CPU seconds used to load them.
        workers: Number of DataLoader workers.
        changes: Other values.
    """
    spent = {**MODEL, "data": data}
    waiting = DataWaitStats(data, sum(spent.values()), workers, 1, 2, data, cpu)
    values: dict[str, Any] = {"gpu_busy": None, "table": "", "images_once": False}
    values |= {"checkpoint_interval": 1000, "evaluation_interval": 1000, "max_updates": 22000, "batch_size": 8}
    values |= {"checkpoint": 0.13, "validation": 0.45, "spent": spent, "waiting": waiting}
    return TrainingProfile(**{**values, **changes})


@pytest.mark.parametrize(
    ("profile", "verdict"),
    [
        (make_profile(), "the model itself takes the time: forward 25 %, backward 51 %, optimizer 17 %"),
        (
            make_profile(data=0.25, cpu=0.25, images_once=True),
            f"{WAITS}, mostly for the CPU (less once all images are decoded): training.num_workers=1",
        ),
        (make_profile(data=0.25, cpu=0.01), f"{WAITS}, mostly for the disk: training.num_workers=2"),
        (make_profile(data=0.25, cpu=None, workers=2), f"{WAITS}; more DataLoader workers would not help"),
        (
            make_profile(checkpoint=3.2, checkpoint_interval=20),
            "checkpoints take 45 % of the time, 3.2 s each: training.checkpoint_interval=400",
        ),
        (
            make_profile(evaluation_interval=20),
            "validations take 13 % of the time, 0.6 s each: training.evaluation_interval=60",
        ),
        (
            make_profile(spent={**MODEL, "forward": 0.018, "backward": 0.04}, batch_size=2),
            "38 % of the time is a fixed cost per update; a larger batch changes the training: training.batch_size=4",
        ),
    ],
)
def test_largest_cost_names_the_setting_that_reduces_it(profile: TrainingProfile, verdict: str) -> None:
    assert profile.largest_cost() == verdict


def test_logging_and_other_time_are_fixed_costs() -> None:
    advice = make_profile(spent={**MODEL, "logging": 0.2}).largest_cost()
    assert advice.startswith("61 % of the time is a fixed cost per update")


def test_suggested_interval_reduces_share_to_the_target() -> None:
    profile = make_profile(evaluation_interval=1)
    interval = int(profile.largest_cost().partition("training.evaluation_interval=")[2])
    assert replace(profile, evaluation_interval=interval).shares_by_phase()["validations"] <= 0.05


def test_suggested_interval_leaves_enough_checkpoints() -> None:
    profile = make_profile(checkpoint=3.2, checkpoint_interval=20, max_updates=2000)
    assert profile.largest_cost().endswith("training.checkpoint_interval=400")
    assert replace(profile, max_updates=1999).largest_cost().endswith("3.2 s each")
    assert replace(profile, max_updates=None).largest_cost().endswith("training.checkpoint_interval=400")


@pytest.mark.parametrize(
    ("interval", "message"),
    [(1, "checkpoints take 30 % of the time"), (10, "the model waits for data 56 % of the time")],
)
def test_largest_of_several_costs_is_named(interval: int, message: str) -> None:
    profile = make_profile(data=0.25 if interval > 1 else 0.12, checkpoint_interval=interval, checkpoint=0.13)
    assert profile.largest_cost().startswith(message)


@pytest.mark.parametrize(("busy", "is_named"), [(0.31, True), (0.5, False), (None, False)])
def test_idle_gpu_is_named_if_no_cost_explains_it(busy: float | None, is_named: bool) -> None:
    assert (make_profile(gpu_busy=busy).largest_cost() == "the GPU is busy 31 % of the time") == is_named
    assert make_profile(gpu_busy=busy, data=0.25).largest_cost().startswith(WAITS)


def test_shares_use_intervals_of_the_training() -> None:
    shares = make_profile(
        checkpoint=2.0, checkpoint_interval=10, validation=3.0, evaluation_interval=20
    ).shares_by_phase()
    assert sum(shares.values()) == pytest.approx(1)
    update = 0.01 + sum(MODEL.values())
    assert shares["checkpoints"] == pytest.approx(0.2 / (update + 0.2 + 0.25))
    assert shares["validations"] == pytest.approx(0.25 / (update + 0.2 + 0.25)), (
        "validations must include their checkpoints"
    )
