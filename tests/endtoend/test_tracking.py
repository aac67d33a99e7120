"""Trainings that are followed: whatever becomes of the follower or the server, they go as without."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmf_win.protocol import read_events
from mmf_win.runs.folder import Run
from mmf_win.runs.history import run_state
from tests.endtoend.conftest import Tool, assert_same_weights, logged_losses
from tests.endtoend.test_stopping import user
from tests.tracking.conftest import mlflow, server  # noqa: F401
from tests.worlds.mlflow_server import MlflowExperiment, requires_mlflow_server

pytestmark = pytest.mark.wide
_WORDS = ("--updates", "60", "--seed", "1", "training.log_interval=1", "training.checkpoint_interval=10")
_LONG = ("--updates", "100000", "training.log_interval=1")
_TO = ("--track", "mlflow")


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        yield address


def followers(run: Run) -> list[int]:
    """The processes that follow a run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"mmf_win.tracking.follower" in words and str(run.path).encode() in words:
            found.append(int(entry.name))
    return found


@requires_mlflow_server
def test_a_training_is_sent_while_its_follower_is_killed_and_then_to_its_end(
    tool: Tool,
    mlflow: MlflowExperiment,  # noqa: F811
) -> None:
    alone = tool.train(tool.preset("visual_bert"), *_WORDS, "--name", "alone")
    with user(tool, "train", tool.preset("visual_bert"), *_WORDS, *_TO, "--name", "followed") as who:
        [run] = who.waits_for(lambda: [*map(Run, tool.save_dir.glob("followed/*"))])
        [pid] = who.waits_for(lambda: followers(run))
        who.waits_for(lambda: [*run.tracking.glob("*.json")])
        os.kill(pid, signal.SIGKILL)
        assert who.gets_the_prompt_back() == 0
    assert f"mmfw track push {run.path} --to mlflow" in who.read.replace("'", "")
    assert logged_losses(run) == logged_losses(alone)
    assert_same_weights(run, alone)
    assert not followers(run)
    [told] = tool("track", "push", str(run.path), "--to", "mlflow")
    assert told["state"] == "done" and mlflow.only_run().info.status == "FINISHED"
    train = [event for event in read_events(run.events) if event["kind"] == "train"]
    assert [(s, t) for s, t, _ in mlflow.points("train/loss")] == [
        (event["update"], round(event["t"] * 1000)) for event in train
    ]
    assert "config.yaml" in mlflow.list_files()
    result = tool("predict", str(run.path), "--split", "dev_seen", "--no-report", *_TO)
    assert [value for _, _, value in mlflow.points("dev_seen/auroc")] == [result["auroc"]]


def test_a_server_that_never_answers_keeps_nobody_waiting(tool: Tool, hanging: str) -> None:
    what = ("--track-models", "best")
    with user(tool, "train", tool.preset("visual_bert"), *_WORDS, *_TO, *what) as who:
        run = who.sees("train")
        assert who.gets_the_prompt_back() == 0
    assert who.read.count("mmfw track push") == 1 and "server does not answer" in who.read
    assert "--to mlflow --track-models best" in who.read
    assert len(logged_losses(run)) == 60 and not followers(run)


def test_ctrl_c_ends_the_follower_of_a_training(tool: Tool, hanging: str) -> None:
    with user(tool, "train", tool.preset("visual_bert"), *_LONG, *_TO) as who:
        run = who.sees("train")
        who.process.send_signal(signal.SIGINT)
        assert who.gets_the_prompt_back() == 130
    assert "resume with" in who.read and not followers(run)


def test_a_follower_ends_when_mmfw_was_killed_and_its_worker_has_left(tool: Tool, hanging: str) -> None:
    with user(tool, "train", tool.preset("visual_bert"), *_LONG, *_TO) as who:
        run = who.sees("train")
        who.process.kill()
        who.process.wait()
    while followers(run):
        time.sleep(0.05)
    assert run_state(run) == "interrupted"
