"""The verdict of a profile: of recorded ones, and of those with one figure changed.

The recorded are what `scripts/plant_bottlenecks.py --keep FOLDER` left on two processors.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmf_win.files import read_json
from mmf_win.phases import Phases
from mmf_win.results import profile as results
from mmf_win.runs.profiling import Profile

RECORDED = Path(__file__).with_name("profiles")


def recorded(name: str, **changes: Any) -> Profile:
    """A recorded profile, with other figures of its phases."""
    values = read_json(RECORDED / f"{name}.json")
    return Profile(**{**values, "phases": Phases(**{**values["phases"], **changes})})


def said(profile: Profile) -> list[str]:
    """The verdict, in words."""
    return [str(advice) for advice in results.verdict(profile)]


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("nothing", "the model itself takes the time: forward 25 %, backward 51 %, optimizer 17 %"),
        (
            "a-slow-decoder",
            "the model waits for data 58 % of the time, mostly for the processor (less once all images are "
            "decoded): training.num_workers=1",
        ),
        (
            "a-slow-disk-to-read-from",
            "the model waits for data 58 % of the time, mostly for the disk (less once all images are "
            "decoded): training.num_workers=2",
        ),
        (
            "a-slow-disk-to-write-to",
            "checkpoints of 3.2 s each take 45 % of the time: training.checkpoint_interval=500",
        ),
        (
            "a-tiny-batch",
            "at least 72 % of an update does not depend on its rows (2); with 8 times as many, rows are up "
            "to 2.7 times as fast, but training is another one: training.batch_size=16",
        ),
    ],
)
def test_a_planted_bottleneck_is_named_with_the_setting_that_helps(name: str, verdict: str) -> None:
    assert said(recorded(name)) == [verdict]


def test_where_all_processors_compute_workers_are_no_help_for_a_slow_decoder() -> None:
    profile = recorded("a-slow-decoder", threads=2, images_once=False)
    assert said(profile) == [
        "the model waits for data 58 % of the time, mostly for the processor; "
        "workers would not help on 2 processors"
    ]


def test_a_short_wait_is_named_without_a_setting() -> None:
    profile = recorded("a-slow-decoder", images_once=False)
    phases = profile.phases
    tenth = {phase: seconds / 10 for phase, seconds in phases.spent.items()}
    short = replace(
        profile, phases=replace(phases, spent=tenth, loading_cpu=phases.loading_cpu / 10, a_pass=0.0)
    )
    assert said(short) == [
        "the model waits for data 58 % of the time, mostly for the processor: 25 ms an update, too short for "
        "workers to help"
    ]


def test_what_workers_wait_for_is_not_known() -> None:
    profile = recorded("a-slow-disk-to-read-from", workers=2, loading_cpu=None, images_once=False)
    assert said(profile) == [
        "the model waits for data 58 % of the time; more workers would not help on 2 processors"
    ]


def test_checkpoints_and_validations_count_by_the_intervals_of_the_training() -> None:
    profile = recorded("a-slow-disk-to-write-to")
    assert not any("checkpoints" in line for line in said(replace(profile, checkpoint_interval=1000)))
    often = replace(profile, checkpoint_interval=1000, evaluation_interval=1)
    advice = results.verdict(often)[0]
    assert advice.text.startswith("validations of ")
    interval = int((advice.setting or "").removeprefix("training.evaluation_interval="))
    seldom = results.over_a_run(replace(often, evaluation_interval=interval))
    assert seldom["validating"] / sum(seldom.values()) <= 0.05


def test_no_interval_is_suggested_that_leaves_a_training_with_few_checkpoints() -> None:
    profile = recorded("a-slow-disk-to-write-to")
    assert (
        results.verdict(replace(profile, max_updates=2500))[0].setting == "training.checkpoint_interval=500"
    )
    assert results.verdict(replace(profile, max_updates=2499))[0].setting is None


def test_the_largest_share_comes_first() -> None:
    profile = replace(recorded("a-slow-disk-to-read-from"), checkpoint_interval=1)
    shares = [advice.share for advice in results.verdict(profile)]
    assert len(shares) == 2 and shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(("busy", "named"), [(0.31, True), (0.5, False), (None, False)])
def test_a_gpu_that_has_little_to_do_is_named(busy: float | None, named: bool) -> None:
    assert ("the GPU works 31 % of the time" in said(recorded("nothing", gpu_busy=busy))) == named


def test_an_update_of_one_row_cannot_be_halved_so_less_is_enough_to_name_it() -> None:
    assert "training.batch_size=" in said(recorded("a-tiny-batch", batch=1, a_pass=None))[0]
    assert "training.batch_size=" not in said(recorded("a-tiny-batch", batch=2, a_pass=None))[0]


@pytest.mark.parametrize(
    ("seconds", "interval"), [(0.2, 1), (1, 1), (1.1, 2), (3, 5), (501, 1000), (2000, 2000)]
)
def test_intervals_are_round_numbers(seconds: float, interval: int) -> None:
    assert results._round_up(seconds) == interval


def test_the_json_has_the_verdict_and_every_figure() -> None:
    profile = recorded("a-tiny-batch")
    values = results.as_json(profile)
    assert values["verdict"][0]["setting"] == "training.batch_size=16"
    assert values["phases"]["spent"] == profile.phases.spent
