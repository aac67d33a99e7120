"""Outcomes of worker processes, with fake functions instead of those of MMF."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmf_win import compat
from mmf_win.protocol import AttemptRequest
from mmf_win.protocol.attempt import TrainTask
from mmf_win.worker import entry as worker


@pytest.fixture
def request_(tmp_path: Path) -> AttemptRequest:
    """Return the request of an attempt, which is saved in its folder."""
    request = AttemptRequest(TrainTask(), "mmbt", str(tmp_path / "mmf"), str(tmp_path / "attempts" / "1"))
    request.folder.path.mkdir(parents=True)
    request.save()
    return request


def test_outcome_recorded_by_a_helper_takes_precedence(
    request_: AttemptRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DataLoader worker on Windows may run out of the paging file when it imports torch."""

    def out_of_memory(*_: Any) -> None:
        raise MemoryError

    def broken_pipe(*_: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setenv("MMFW_REQUEST", str(request_.folder.request_file))
    monkeypatch.setattr(compat, "install", out_of_memory)
    with pytest.raises(MemoryError):
        runpy.run_path(worker.__file__, run_name="__mp_main__")

    monkeypatch.setattr(worker, "prepare_mmf", lambda *_: None)
    monkeypatch.setattr(worker, "run_mmf", broken_pipe)
    outcome = worker.run_attempt(request_, None)  # type: ignore[arg-type]
    assert (outcome.kind, outcome.message) == ("host_oom", "MemoryError")


def test_error_of_the_worker_counts_if_no_helper_recorded_one(
    request_: AttemptRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("x")

    monkeypatch.setattr(worker, "prepare_mmf", fail)
    assert worker.run_attempt(request_, None).kind == "mmf"  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_limit_of_open_files_is_raised_to_the_maximum() -> None:
    code = """
import resource
from mmf_win.worker.entry import raise_file_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
raise_file_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("lines", "code", "printed"),
    [
        (("atexit.register(print, 'uploaded')", "print('printed')"), 3, "printed\nuploaded\n"),
        (
            (
                "go = threading.Event()",
                "threading.Thread(target=lambda: (go.wait(), print('done'))).start()",
                "threading._register_atexit(go.set)",
            ),
            4,
            "done\n",
        ),
        (("threading.Thread(target=time.sleep, args=[99], daemon=True).start()",), 3, ""),
    ],
    ids=["exit functions of libraries", "a thread that an exit waits for", "a daemon thread"],
)
def test_immediate_exit_loses_nothing(lines: tuple[str, ...], code: int, printed: str) -> None:
    """The exit code of a subprocess shows how it exited."""
    imports = ["import atexit, threading, time", "from mmf_win.worker.entry import exit_immediately"]
    program = "\n".join([*imports, *lines, "exit_immediately(3)", "raise SystemExit(4)"])
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8")
    assert (result.returncode, result.stdout) == (code, printed)
