"""Which intervals of a training a profile stands for."""

from __future__ import annotations

from typing import Any

import pytest

from mmf_win.errors import UsageError
from mmf_win.runs.profiling import read_intervals

EACH = {"checkpoint_interval": 7, "evaluation_interval": 5}


@pytest.mark.parametrize(("total", "expected"), [(100, 100), (None, None), ("${updates}", None)])
def test_intervals_and_total_are_those_of_the_training(total: Any, expected: int | None) -> None:
    assert read_intervals({**EACH, "max_updates": total}) == (7, 5, expected)


def test_a_training_that_counts_epochs_has_no_total_of_updates() -> None:
    """MMF lets epochs win over the updates that a preset has."""
    assert read_intervals({**EACH, "max_updates": 100, "max_epochs": 2}) == (7, 5, None)


@pytest.mark.parametrize("key", EACH)
@pytest.mark.parametrize("value", [0, -1, "often", None, 0.5])
def test_an_interval_that_is_no_number_of_updates_is_refused(key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"training.{key} is {value}"):
        read_intervals({**EACH, "max_updates": 100, key: value})
