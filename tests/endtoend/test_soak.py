"""The script that interrupts a training at random moments, with few of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("the soak looks for processes in /proc, which is not on Windows", allow_module_level=True)

_SCRIPT = Path(__file__).parents[2] / "scripts" / "soak.py"


def test_a_training_that_is_interrupted_at_random_moments_loses_nothing(mmf: str) -> None:
    words = ("--interruptions", "2", "--updates", "150", "--seed", "5")
    done = subprocess.run(
        [sys.executable, str(_SCRIPT), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 interruptions, 150 updates" in done.stdout and "Lost: nothing." in done.stdout
