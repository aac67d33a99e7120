"""That the faults of the tests strike where they say, in the real MMF."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.endtoend.conftest import Tool

pytestmark = pytest.mark.torch


def test_faults_strike_at_their_update_and_in_what_goes_on(tool: Tool, faulty: Callable[..., None]) -> None:
    faulty({"at": "saved", "do": "truncate", "update": 2}, {"at": "step", "do": "memory_error", "update": 3})
    assert tool.code("train", tool.preset("vilbert"), "--updates", "4", "training.checkpoint_interval=1") == 5
    assert tool("runs")[0]["updates"] == 2
    faulty({"at": "step", "do": "memory_error", "update": 4})
    assert tool.code("train", "--resume", "last", "--updates", "4") == 5
    assert "current.ckpt: it is cut off" in tool.errors
    assert tool("runs")[0]["updates"] == 3
