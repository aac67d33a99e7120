"""Signals to real ``mmfw`` processes without a worker, at fixed points of their work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from mmf_win.paths import MmfPaths
from mmf_win.signals import FORCE_STOP_AFTER_SECONDS
from tests.worlds.archive_writers import COPY_FILTERS, write_7z
from tests.worlds.memes import dataset_files, tar_gz

if sys.platform == "win32":
    pytest.skip("a Windows program cannot send another one Ctrl+C alone", allow_module_level=True)

# Prints a line after the first bytes, and then waits.
_WAIT_IN_PROGRESS = """
import sys, threading
from mmf_win.cli import main
from mmf_win.console import Progress

def wait(text):
    print(text, flush=True)
    threading.Event().wait()

Progress.advance = lambda self, amount: wait("at work")
"""
# Python waits for the thread at exit.
_HANG_IN_CLEANUP = """
def clean_up(self, *error):
    threading.Thread(target=threading.Event().wait).start()
    wait("cleaning up")

Progress.__exit__ = clean_up
"""
_RUN = "sys.exit(main(sys.argv[1:]))"


@contextmanager
def run_command(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command in its own process."""
    command = [sys.executable, "-c", program + _RUN, *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_line(process: subprocess.Popen[str], line: str) -> None:
    """Wait until the process has printed ``line``."""
    assert process.stdout is not None
    while process.stdout.readline().strip() != line:
        assert process.poll() is None


@pytest.fixture
def archive(user_dir: Path) -> Path:
    """Make the dataset as a tar.gz, which is extracted by one thread."""
    path = user_dir / "memes.tar.gz"
    path.write_bytes(tar_gz(dataset_files()))
    return path


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("command", ["convert", "features extract"])
def test_signal_during_extraction_leaves_nothing_that_looks_finished(
    archive: Path, user_dir: Path, command: str, name: str
) -> None:
    data = user_dir / "data"
    output_option = ["--json"] if command == "convert" else []
    if command == "features extract":
        archive.write_bytes(tar_gz({"detectron.lmdb/data.mdb": b"\0" * 4096}))
    with run_command(
        _WAIT_IN_PROGRESS, *command.split(), str(archive), "--data-dir", str(data), *output_option
    ) as process:
        wait_for_line(process, "at work")
        process.send_signal(getattr(signal, name))
        output, errors = process.communicate()
        assert process.returncode == 130, errors
    assert "interrupted" in errors and "error" not in errors and "Traceback" not in errors
    assert not output_option or json.loads(output.splitlines()[-1])["error"]["code"] == 130
    dataset = MmfPaths.resolve(data).dataset
    assert not dataset.annotation_file("train").exists()
    assert not (dataset.features / "detectron.lmdb").exists()


@pytest.mark.parametrize("send", [os.kill, os.killpg])  # a terminal sends the signal to the process group
def test_signal_during_extraction_of_a_7z_ends_its_decoder(user_dir: Path, send: Callable[[int, int], None]) -> None:
    data = user_dir / "data"
    archive = write_7z(user_dir / "lmdb.7z", {"detectron.lmdb/data.mdb": bytes(50 << 20)}, filters=COPY_FILTERS)
    with run_command(_WAIT_IN_PROGRESS, "features", "extract", str(archive), "--data-dir", str(data)) as process:
        wait_for_line(process, "at work")
        (decoder,) = psutil.Process(process.pid).children()
        send(process.pid, signal.SIGINT)
        _, errors = process.communicate()
        assert process.returncode == 130, errors
        decoder.wait()
    assert "interrupted" in errors and "Traceback" not in errors
    assert not [*data.rglob("data.mdb")]


def test_second_ctrl_c_does_not_wait_for_cleanup(archive: Path, user_dir: Path) -> None:
    arguments = ["convert", "--zip", str(archive), "--data-dir", str(user_dir / "data")]
    with run_command(_WAIT_IN_PROGRESS + _HANG_IN_CLEANUP, *arguments) as process:
        wait_for_line(process, "at work")
        process.send_signal(signal.SIGINT)
        wait_for_line(process, "cleaning up")
        time.sleep(FORCE_STOP_AFTER_SECONDS)  # the first Ctrl+C was counted before the cleanup began
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


def test_stop_file_interrupts_a_command(archive: Path, user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, data = user_dir / "stop", user_dir / "data"
    monkeypatch.setenv("MMFW_STOP_FILE", str(stop))
    with run_command(_WAIT_IN_PROGRESS, "convert", str(archive), "--data-dir", str(data)) as process:
        wait_for_line(process, "at work")
        stop.touch()
        _, errors = process.communicate()
        assert process.returncode == 130, errors
    assert not MmfPaths.resolve(data).dataset.annotation_file("train").exists()
