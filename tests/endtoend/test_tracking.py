"""Runs with a tracker: they do not depend on the tracking process (the follower) or its server."""

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
from tests.endtoend.conftest import Tool, assert_same_weights, logged_losses, start_command
from tests.tracking.conftest import mlflow, server  # noqa: F401
from tests.worlds.mlflow_server import MlflowExperiment, requires_mlflow_server

pytestmark = pytest.mark.wide
_ARGUMENTS = ("--updates", "60", "--seed", "1", "training.log_interval=1", "training.checkpoint_interval=10")
_ENDLESS = ("--updates", "100000", "training.log_interval=1")
_TRACK = ("--track", "mlflow")


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        yield address


def list_follower_pids(run: Run) -> list[int]:
    """Return the process ids of the followers of a run."""
    process_ids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"mmf_win.tracking.follower" in arguments and str(run.path).encode() in arguments:
            process_ids.append(int(entry.name))
    return process_ids


@requires_mlflow_server
def test_upload_is_completed_after_follower_was_killed(
    tool: Tool,
    mlflow: MlflowExperiment,  # noqa: F811
) -> None:
    untracked_run = tool.train(tool.write_preset("visual_bert"), *_ARGUMENTS, "--name", "alone")
    with start_command(
        tool, "train", tool.write_preset("visual_bert"), *_ARGUMENTS, *_TRACK, "--name", "followed"
    ) as command:
        [run] = command.wait_until(lambda: [*map(Run, tool.save_dir.glob("followed/*"))])
        [pid] = command.wait_until(lambda: list_follower_pids(run))
        command.wait_until(lambda: [*run.tracking.glob("*.json")])
        os.kill(pid, signal.SIGKILL)
        assert command.wait_for_exit() == 0
    assert f"mmfw track push {run.path} --to mlflow" in command.output.replace("'", "")
    assert logged_losses(run) == logged_losses(untracked_run)
    assert_same_weights(run, untracked_run)
    assert not list_follower_pids(run)
    [result] = tool("track", "push", str(run.path), "--to", "mlflow")
    assert result["state"] == "done" and mlflow.only_run().info.status == "FINISHED"
    train = [event for event in read_events(run.events) if event["kind"] == "train"]
    assert [(s, t) for s, t, _ in mlflow.points("train/loss")] == [
        (event["update"], round(event["t"] * 1000)) for event in train
    ]
    assert "config.yaml" in mlflow.list_files()
    result = tool("predict", str(run.path), "--split", "dev_seen", "--no-report", *_TRACK)
    assert [value for _, _, value in mlflow.points("dev_seen/auroc")] == [result["auroc"]]


def test_server_that_never_answers_does_not_block_training(tool: Tool, silent_server: str) -> None:
    models = ("--track-models", "best")
    with start_command(tool, "train", tool.write_preset("visual_bert"), *_ARGUMENTS, *_TRACK, *models) as command:
        run = command.wait_for_event("train")
        assert command.wait_for_exit() == 0
    assert command.output.count("mmfw track push") == 1 and "server does not answer" in command.output
    assert "--to mlflow --track-models best" in command.output
    assert len(logged_losses(run)) == 60 and not list_follower_pids(run)


def test_ctrl_c_ends_follower_of_training(tool: Tool, silent_server: str) -> None:
    with start_command(tool, "train", tool.write_preset("visual_bert"), *_ENDLESS, *_TRACK) as command:
        run = command.wait_for_event("train")
        command.process.send_signal(signal.SIGINT)
        assert command.wait_for_exit() == 130
    assert "resume with" in command.output and not list_follower_pids(run)


def test_follower_exits_after_mmfw_was_killed_and_worker_has_ended(tool: Tool, silent_server: str) -> None:
    with start_command(tool, "train", tool.write_preset("visual_bert"), *_ENDLESS, *_TRACK) as command:
        run = command.wait_for_event("train")
        command.process.kill()
        command.process.wait()
    while list_follower_pids(run):
        time.sleep(0.05)
    assert run_state(run) == "interrupted"
