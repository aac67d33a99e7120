"""A real MLflow server with SQLite on this machine, and what it has."""

from __future__ import annotations

import os
import signal
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

from mmf_win.locking import locked

needs_server = pytest.mark.skipif(sys.platform == "win32", reason="on Windows no server of MLflow is started")
_PATIENCE = 240.0


@contextmanager
def shared_server(folder: Path) -> Iterator[str]:
    """The address of one server for all processes of a test run; whoever leaves last ends it."""
    folder.mkdir(exist_ok=True)
    users, address = folder / "users", folder / "address"
    with locked(folder / "lock", patience=_PATIENCE):
        others = users.read_text("ascii") if users.exists() else ""
        if not others:
            address.write_text("\n".join(_start(folder)), "ascii")
        users.write_text(f"{others}x", "ascii")
    url, pid = address.read_text("ascii").splitlines()
    yield url
    with locked(folder / "lock", patience=_PATIENCE):
        users.write_text(users.read_text("ascii")[1:], "ascii")
        if not users.read_text("ascii"):
            os.killpg(int(pid), signal.SIGKILL)


def _start(folder: Path) -> tuple[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    words += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "log.txt").open("wb") as log:
        command = [sys.executable, "-m", "mlflow", "server", *words]
        environ = {
            **os.environ,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }  # of things that nobody asks for
        process = subprocess.Popen(
            command, cwd=folder, env=environ, stdout=log, stderr=log, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        with suppress(OSError), urlopen(f"{url}/health", timeout=5) as answer:
            assert answer.status == 200
            process.returncode = 0  # whoever leaves last ends it, so that nobody waits for it here
            return url, str(process.pid)
        assert process.poll() is None, (folder / "log.txt").read_text(encoding="utf-8")
        time.sleep(0.1)
    raise TimeoutError(url)


class Seen:
    """What the server has of the runs of an experiment, read by MLflow's own client."""

    def __init__(self, url: str, experiment: str) -> None:
        from mlflow import MlflowClient

        self.client, self.experiment = MlflowClient(url), experiment

    def runs(self) -> list[Any]:
        """All of them, the newest first; those of sweeps are in it, too."""
        found = self.client.get_experiment_by_name(self.experiment)
        return [] if found is None else [*self.client.search_runs([found.experiment_id])]

    def run(self) -> Any:
        """The only one."""
        [run] = self.runs()
        return run

    def points(self, name: str) -> list[tuple[int, int, float]]:
        """Update, time in milliseconds and value of each point of a series, in the order of updates."""
        history = self.client.get_metric_history(self.run().info.run_id, name)
        return sorted((point.step, point.timestamp, point.value) for point in history)

    def series(self) -> set[str]:
        """The names of all series."""
        return set(self.run().data.metrics)

    def files(self, folder: str = "") -> set[str]:
        """The names of what lies in a folder there."""
        return {file.path for file in self.client.list_artifacts(self.run().info.run_id, folder)}

    def text(self, name: str, folder: Path) -> str:
        """The text of a file there, which is downloaded to a folder here."""
        there = self.client.download_artifacts(self.run().info.run_id, name, str(folder))
        return Path(there).read_text(encoding="utf-8")
