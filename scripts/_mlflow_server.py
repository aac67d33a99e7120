"""MLflow server on this machine, to which scripts upload their runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from _bench import PYTHON


@contextmanager
def run_mlflow_server(folder: Path) -> Iterator[None]:
    """Run a server that receives all runs of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    names = {"MMFW_TRACK": "mlflow", "MLFLOW_EXPERIMENT_NAME": folder.name, "MLFLOW_TRACKING_URI": address}
    os.environ.update(names)
    options = ["server", "--port", str(port), "--workers", "1", "--backend-store-uri", f"sqlite:///{folder / 'db'}"]
    with (folder / "mlflow.txt").open("wb") as log:
        command = [PYTHON, "-m", "mlflow", *options]
        environ = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # not needed
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        while process.poll() is None and not _is_healthy(address):
            time.sleep(0.1)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_healthy(address: str) -> bool:
    try:
        with urlopen(f"{address}/health", timeout=5):
            return True
    except OSError:
        return False
