"""Local MLflow server with SQLite, and a reader of its data."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from mmf_win.locking import file_lock

requires_mlflow_server = pytest.mark.skipif(sys.platform == "win32", reason="no MLflow server is started on Windows")
_TIMEOUT_SECONDS = 240.0


# The exclusive lock is granted when all users have ended: the system releases their locks even if they are killed.
_KEEPER_PROGRAM = """
import fcntl, os, signal, sys
users, address, pid = sys.argv[1:]
with open(users) as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    if os.path.exists(address):
        os.remove(address)
    os.killpg(int(pid), signal.SIGKILL)
"""


@contextmanager
def shared_server(folder: Path) -> Iterator[str]:
    """Yield the address of a server that all processes of a test run share; it ends with the last process."""
    import fcntl

    folder.mkdir(exist_ok=True)
    users, address = folder / "users", folder / "address"
    with users.open("w") as file:
        with file_lock(folder / "lock", timeout=_TIMEOUT_SECONDS):
            fcntl.flock(file, fcntl.LOCK_SH)
            if not address.exists():
                address.write_text(_start_server(folder, users, address), "ascii")
            url = address.read_text("ascii")
        yield url


def kill_when_unused(process: subprocess.Popen[bytes], users: Path, address: Path) -> None:
    """Start a keeper that kills a process and its group, and removes its address, when ``users`` is unlocked."""
    keeper = subprocess.Popen(
        [sys.executable, "-c", _KEEPER_PROGRAM, users, address, str(process.pid)],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl+C in a terminal must stop only the tests
    )
    keeper.returncode = 0  # it may outlive this process, so it must not be reported as still running


def _start_server(folder: Path, users: Path, address: Path) -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    arguments += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    arguments += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "log.txt").open("wb") as log:
        command = [sys.executable, "-m", "mlflow", "server", *arguments]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # unused feature
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        kill_when_unused(process, users, address)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError), urlopen(f"{url}/health", timeout=5) as response:
            assert response.status == 200
            process.returncode = 0  # it may outlive this process, so it must not be reported as still running
            return url
        assert process.poll() is None, (folder / "log.txt").read_text(encoding="utf-8")
        time.sleep(0.1)
    raise TimeoutError(url)


class MlflowExperiment:
    """Runs of an experiment on the server, read with MLflow's client."""

    def __init__(self, url: str, experiment: str) -> None:
        from mlflow import MlflowClient

        self.client, self.experiment = MlflowClient(url), experiment

    def runs(self) -> list[Any]:
        """Return all runs, including those of sweeps, the newest first."""
        experiment = self.client.get_experiment_by_name(self.experiment)
        return [] if experiment is None else [*self.client.search_runs([experiment.experiment_id])]

    def only_run(self) -> Any:
        """Return the only run."""
        [run] = self.runs()
        return run

    def points(self, name: str) -> list[tuple[int, int, float]]:
        """Return update, time in milliseconds and value of each point of a series, in the order of updates."""
        history = self.client.get_metric_history(self.only_run().info.run_id, name)
        return sorted((point.step, point.timestamp, point.value) for point in history)

    def series_names(self) -> set[str]:
        """Return the names of all series of the only run."""
        return set(self.only_run().data.metrics)

    def list_files(self, folder: str = "") -> set[str]:
        """Return the paths of the artifacts in a folder of the only run."""
        return {file.path for file in self.client.list_artifacts(self.only_run().info.run_id, folder)}

    def download_text(self, name: str, folder: Path) -> str:
        """Download an artifact of the only run to a folder and return its text."""
        path = self.client.download_artifacts(self.only_run().info.run_id, name, str(folder))
        return Path(path).read_text(encoding="utf-8")
