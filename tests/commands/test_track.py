"""Problems with a tracker are reported before training; temporary ones are only a warning."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mmf_win.tracking.mlflow_tracker import MLflowTracker
from mmf_win.upstream import install
from tests.worlds import report_world
from tests.worlds.tools import MmfwRunner
from tests.worlds.web_server import WebServer, respond_with

_REASON = "not installed: mlflow" + (" on Windows without PyTorch" if sys.platform == "win32" else "")
_skip_without_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason=_REASON)


def needs_mlflow(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs the extra mlflow, which the default tests do not install."""
    marked: Callable[..., None] = pytest.mark.wide(_skip_without_mlflow(test))
    return marked


@pytest.fixture
def no_tracker(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """Set all trackers to a web server that is not a tracker."""
    with WebServer.serving(index_html=b"<html>") as server:
        for name in ("MLFLOW_TRACKING_URI", "CLEARML_API_HOST", "WANDB_BASE_URL"):
            monkeypatch.setenv(name, server.url)
        yield server


@needs_mlflow
@pytest.mark.parametrize("command", [("train", "mmbt_grid"), ("predict",), ("track", "push")])
def test_server_that_is_not_a_tracker_is_rejected(
    mmfw: MmfwRunner, no_tracker: WebServer, command: tuple[str, ...]
) -> None:
    option = "--to" if "push" in command else "--track"
    mmfw(*command, option, "mlflow", code=2)
    assert f"{no_tracker.url} hateful-memes is not a server of mlflow" in mmfw.err
    assert "MLFLOW_TRACKING_URI" in mmfw.err and "no Hateful Memes" not in mmfw.err


@needs_mlflow
def test_unavailable_server_is_reported(
    mmfw: MmfwRunner, user_dir: Path, no_tracker: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_tracker.files[MLflowTracker.probe[0].lstrip("/")] = b"{}"
    no_tracker.faults = [respond_with(500)]
    train = ("train", "mmbt_grid", "--data-dir", user_dir, "--track", "mlflow")
    mmfw(*train, code=3)
    assert "does not answer: Internal Server Error" in mmfw.err and "no Hateful Memes dataset" in mmfw.err
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@127.0.0.1:9")
    mmfw(*train, code=3)
    assert "does not answer" in mmfw.err and "no Hateful Memes dataset" in mmfw.err
    assert "hunter2" not in mmfw.err
    report_world.make(user_dir, draw_images=False).add_run()
    mmfw("track", "push", "--to", "mlflow", "--save-dir", user_dir / "save", code=6)
    assert "hunter2" not in mmfw.err and "server does not answer" in mmfw.err


@needs_mlflow
def test_server_that_requires_a_key_counts_as_available(
    mmfw: MmfwRunner, no_tracker: WebServer, user_dir: Path
) -> None:
    no_tracker.files[MLflowTracker.probe[0].lstrip("/")] = b"{}"
    no_tracker.faults = [respond_with(401)]
    mmfw("train", "mmbt_grid", "--data-dir", user_dir, "--track", "mlflow", code=3)
    assert "does not answer" not in mmfw.err and "no Hateful Memes dataset" in mmfw.err


@needs_mlflow
@pytest.mark.parametrize("address", ["127.0.0.1:5000", "mlruns", "http://host:abc", "http://a b"])
def test_invalid_address_is_rejected(mmfw: MmfwRunner, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    mmfw("train", "mmbt_grid", "--track", "mlflow", code=2)
    described = address if address == "mlruns" else f"{address} hateful-memes"  # a folder has no projects
    assert f"error: {described} is not a server of mlflow" in mmfw.err


@needs_mlflow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--track", "tensorboard"), "'tensorboard' is not one of 'mlflow', 'clearml', 'wandb'"),
        (("--track", "mlflow"), "MLFLOW_TRACKING_URI"),
        (("--track-page",), "select a tracker with --track"),
        (("--track-models", "best"), "select a tracker with --track"),
    ],
)
def test_invalid_tracking_options_are_usage_errors(mmfw: MmfwRunner, arguments: tuple[str, ...], message: str) -> None:
    mmfw("train", "mmbt_grid", *arguments, code=2)
    assert message in mmfw.err


@pytest.mark.parametrize("name", ["mlflow", "clearml", "wandb"])
def test_missing_package_is_reported_with_the_pip_command(
    mmfw: MmfwRunner, no_tracker: WebServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find: Callable[[str], Any] = install.find_spec
    monkeypatch.setattr(install, "find_spec", lambda wanted: None if wanted == name else find(wanted))
    monkeypatch.setenv("MMFW_TRACK", name)
    mmfw("train", "mmbt_grid", code=6)
    assert f"[{name}]" in mmfw.err and "pip install" in mmfw.err


def test_push_without_a_tracker_is_an_error(mmfw: MmfwRunner, user_dir: Path) -> None:
    mmfw("track", "push", code=2)
    assert "--to mlflow" in mmfw.err
    mmfw("track", "status", "--save-dir", user_dir)
    assert "nothing uploaded yet" in mmfw.err
    assert mmfw.json("track", "status", "--save-dir", user_dir) == []
