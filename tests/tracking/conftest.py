"""Runs on disk, and a real MLflow server shared by all tests of the package."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmf_win.files import json_bytes
from mmf_win.paths import module_command
from mmf_win.runs.folder import Run
from tests.worlds import mlflow_server, report_world
from tests.worlds.report_world import ReportWorld


@pytest.fixture
def world(user_dir: Path) -> ReportWorld:
    """Return a data folder and a folder of runs, in a folder with a non-ASCII name and spaces."""
    return report_world.make(user_dir, draw_images=False)


@pytest.fixture(scope="session")
def server(shared_folder: Path) -> Iterator[str]:
    """Return the address of the server, which is started once."""
    with mlflow_server.shared_server(shared_folder / "mlflow") as url:
        yield url


@pytest.fixture
def mlflow(
    server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> mlflow_server.MlflowExperiment:
    """Return the server's experiment for this test, to which runs are sent."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    return mlflow_server.MlflowExperiment(server, request.node.name)


def append_events(run: Run, events: list[dict[str, object]]) -> None:
    """Append events to a run."""
    with run.events.open("ab") as file:
        file.write(b"".join(map(json_bytes, events)))


def run_follower(
    tracker: str, run: Run, options: str = "{}", stop_byte: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run a real follower that starts after mmfw has ended, and wait for its end."""
    command = module_command("mmf_win.tracking.follower", tracker, str(run.path), options)
    environ = {**os.environ, "PYTHONUTF8": "1"}
    return subprocess.run(command, input=stop_byte, capture_output=True, env=environ, timeout=300)
