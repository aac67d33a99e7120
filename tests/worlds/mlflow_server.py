"""A real MLflow server with SQLite on this machine, and what it has."""

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

requires_mlflow_server = pytest.mark.skipif(sys.platform == "win32", reason="on Windows no server of MLflow is started")
_TIMEOUT_SECONDS = 240.0


# Whoever holds this lock alone has outlived all users: the system frees their locks even if they are killed.
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
    """Yield the address of one server for all processes of a test run, which ends with the last of them."""
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
    """Have a process and its session killed, and its address removed, once nobody has ``users`` locked."""
    keeper = subprocess.Popen(
        [sys.executable, "-c", _KEEPER_PROGRAM, users, address, str(process.pid)],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl+C in a terminal is for the tests alone
    )
    keeper.returncode = 0  # it outlives this process, which therefore does not wait for it


def _start_server(folder: Path, users: Path, address: Path) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    words += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "log.txt").open("wb") as log:
        command = [sys.executable, "-m", "mlflow", "server", *words]
        environ = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # of things that nobody asks for
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log, start_new_session=True)
        kill_when_unused(process, users, address)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError), urlopen(f"{url}/health", timeout=5) as answer:
            assert answer.status == 200
            process.returncode = 0  # it may outlive this process, which therefore does not wait for it
            return url
        assert process.poll() is None, (folder / "log.txt").read_text(encoding="utf-8")
        time.sleep(0.1)
    raise TimeoutError(url)


class MlflowExperiment:
    """Return the server's data of an experiment's runs, read with MLflow's own client."""

    def __init__(self, url: str, experiment: str) -> None:
        from mlflow import MlflowClient

        self.client, self.experiment = MlflowClient(url), experiment

    def runs(self) -> list[Any]:
        """All of them, the newest first; those of sweeps are in it, too."""
        found = self.client.get_experiment_by_name(self.experiment)
        return [] if found is None else [*self.client.search_runs([found.experiment_id])]

    def only_run(self) -> Any:
        """The only one."""
        [run] = self.runs()
        return run

    def points(self, name: str) -> list[tuple[int, int, float]]:
        """Update, time in milliseconds and value of each point of a series, in the order of updates."""
        history = self.client.get_metric_history(self.only_run().info.run_id, name)
        return sorted((point.step, point.timestamp, point.value) for point in history)

    def series_names(self) -> set[str]:
        """The names of all series."""
        return set(self.only_run().data.metrics)

    def list_files(self, folder: str = "") -> set[str]:
        """The names of what lies in a folder there."""
        return {file.path for file in self.client.list_artifacts(self.only_run().info.run_id, folder)}

    def download_text(self, name: str, folder: Path) -> str:
        """The text of a file there, which is downloaded to a folder here."""
        there = self.client.download_artifacts(self.only_run().info.run_id, name, str(folder))
        return Path(there).read_text(encoding="utf-8")
