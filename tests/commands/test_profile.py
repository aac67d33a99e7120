"""Mistakes on the command line of ``mmfw profile``, which are refused before anything is read or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.tools import Mmfw

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mmbt_grid", "training.max_updates=9"], "--updates and training.max_updates=9"),
        (
            ["mmbt_grid", "--batch-size", "2", "training.batch_size=4"],
            "--batch-size and training.batch_size=4",
        ),
        (["nosuch"], "no run named nosuch"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(
    user_dir: Path, mmfw: Mmfw, words: list[str], said: str
) -> None:
    mmfw("profile", *words, "--save-dir", user_dir / "save", "-o", user_dir / "new", code=2)
    assert said in mmfw.err
    assert list(user_dir.iterdir()) == []
