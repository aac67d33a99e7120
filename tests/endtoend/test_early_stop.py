"""A training that MMF ends well before its total, as it no longer gets better."""

from __future__ import annotations

import pytest

from mmf_win.protocol import read_events
from tests.endtoend.conftest import Tool

pytestmark = pytest.mark.torch

STOP = (
    "optimizer.params.lr=0",
    "training.evaluation_interval=2",
    "training.checkpoint_interval=2",
    "training.early_stop.enabled=True",
    "training.early_stop.patience=2",
)


def test_a_run_that_stopped_early_says_where_and_resumes_only_to_train_on(tool: Tool) -> None:
    """Nothing is learned, so the first validation, at update 2, stays the best."""
    result = tool("train", tool.preset("vilbert"), "--updates", "12", *STOP)
    run = tool.run_of(result)
    assert (result["updates"], result["max_updates"]) == (6, 12)
    assert [one["update"] for one in tool("runs", "show")["validations"]] == [2, 4, 6]
    assert tool.code("train", "--resume", "last") == 2
    assert "update 6" in tool.errors and "resuming" not in tool.errors
    [hint] = [line for line in tool.errors.splitlines() if line.startswith("hint:")]
    assert tool("train", "--resume", "last", hint.split()[1], "--updates", "8")["updates"] == 8
    starts = [e["update"] for e in read_events(run.events) if e["kind"] == "train_started"]
    assert starts == [0, 6]
