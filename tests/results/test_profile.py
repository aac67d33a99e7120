"""The verdict of a profile, from figures measured on two processors with a bottleneck planted each time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmf_win.protocol.data_wait import Waiting
from mmf_win.results import profile as results
from mmf_win.runs.profiling import Profile

MODEL = {"forward": 0.049, "backward": 0.099, "optimizer": 0.033}
MODEL |= {"transfer": 0.0001, "logging": 0.0003, "other": 0.003}
WAITS = "the model waits for data 57 % of the time"


def profiled(data: float = 0.01, cpu: float | None = 0.01, workers: int = 0, **changes: Any) -> Profile:
    """A profile in which the model itself takes the time, but for the changes.

    Args:
        data: seconds for which an update waits for its rows.
        cpu: how long a processor works in them.
        workers: of the DataLoader.
        changes: other figures.
    """
    spent = {**MODEL, "data": data}
    waiting = Waiting(data, sum(spent.values()), workers, 1, 2, data, cpu)
    figures: dict[str, Any] = {"name": "planted", "folder": Path("there"), "device": "cpu", "gpu_busy": None}
    figures |= {"checkpoint_interval": 1000, "evaluation_interval": 1000, "max_updates": 22000, "batch": 8}
    figures |= {"checkpoint": 0.13, "validation": 0.45, "spent": spent, "waiting": waiting}
    return Profile(**{**figures, "images_once": False, **changes})


def said(profile: Profile) -> list[str]:
    """The verdict, in words."""
    return [str(advice) for advice in results.verdict(profile)]


@pytest.mark.parametrize(
    ("profile", "verdict"),
    [
        (profiled(), "the model itself takes the time: forward 25 %, backward 51 %, optimizer 17 %"),
        (
            profiled(data=0.25, cpu=0.25, images_once=True),
            f"{WAITS}, mostly for the processor (less once all images are decoded): training.num_workers=1",
        ),
        (profiled(data=0.25, cpu=0.01), f"{WAITS}, mostly for the disk: training.num_workers=2"),
        (profiled(data=0.25, cpu=None, workers=2), f"{WAITS}; more DataLoader workers would not help"),
        (
            profiled(checkpoint=3.2, checkpoint_interval=20),
            "checkpoints take 45 % of the time, 3.2 s each: training.checkpoint_interval=400",
        ),
        (
            profiled(evaluation_interval=20),
            "validations and their checkpoints take 13 % of the time, 0.6 s each: "
            "training.evaluation_interval=60",
        ),
        (
            profiled(spent={**MODEL, "forward": 0.018, "backward": 0.04}, batch=2),
            "38 % of the time is spent once an update, whatever its rows; a larger batch is another "
            "training: training.batch_size=4",
        ),
    ],
)
def test_what_takes_the_time_is_named_with_the_setting_that_helps(profile: Profile, verdict: str) -> None:
    assert said(profile) == [verdict]


def test_the_suggested_interval_leaves_little_of_what_took_the_time() -> None:
    often = profiled(evaluation_interval=1)
    interval = int((results.verdict(often)[0].setting or "").partition("=")[2])
    spent = results.seconds_of_update(replace(often, evaluation_interval=interval))
    assert spent["evaluation"] / sum(spent.values()) <= 0.05


def test_no_interval_is_suggested_that_leaves_a_training_with_few_checkpoints() -> None:
    profile = profiled(checkpoint=3.2, checkpoint_interval=20, max_updates=2000)
    assert results.verdict(profile)[0].setting == "training.checkpoint_interval=400"
    assert results.verdict(replace(profile, max_updates=1999))[0].setting is None


def test_the_largest_share_comes_first() -> None:
    shares = [advice.share for advice in results.verdict(profiled(data=0.25, checkpoint_interval=1))]
    assert len(shares) == 2 and shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(("busy", "named"), [(0.31, True), (0.5, False), (None, False)])
def test_a_gpu_that_has_little_to_do_is_named(busy: float | None, named: bool) -> None:
    assert ("the GPU works 31 % of the time" in said(profiled(gpu_busy=busy))) == named
