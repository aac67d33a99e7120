"""An installation that is killed at any of its steps leaves the old files, the new ones, or what says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.worlds.kills import installations


@pytest.mark.parametrize("kind", ["force", "features"])
def test_a_kill_at_any_step_leaves_no_part_that_is_believed(kind: str, user_dir: Path) -> None:
    installation = installations(user_dir)[kind]
    _, moves = installation.steps()
    for step in moves if sys.platform != "win32" else moves[::5]:  # where a process takes seconds to start
        assert installation.try_kill(step), f"the command ended before step {step}"
