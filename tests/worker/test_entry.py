"""What the worker says when one of its own processes fails, with functions in the place of MMF's."""

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
    request = AttemptRequest(TrainTask(), "mmbt", str(tmp_path / "mmf"), str(tmp_path / "attempts" / "1"))
    request.folder.path.mkdir(parents=True)
    request.save()
    return request


def test_a_helper_without_memory_leaves_word_for_the_worker_that_sees_only_its_absence(
    request_: AttemptRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DataLoader's worker on Windows, for which the paging file is too small to import torch once more."""

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
    end = worker.run_attempt(request_, None)  # type: ignore[arg-type]
    assert (end.kind, end.message) == ("host_oom", "MemoryError")


def test_without_such_a_word_the_workers_own_error_counts(
    request_: AttemptRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("x")

    monkeypatch.setattr(worker, "prepare_mmf", fails)
    assert worker.run_attempt(request_, None).kind == "mmf"  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_worker_may_have_as_many_files_open_as_the_system_allows() -> None:
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
    ids=[
        "what libraries do at exit",
        "a thread that an exit waits for",
        "a thread that it does not wait for",
    ],
)
def test_leaving_at_once_loses_nothing(lines: tuple[str, ...], code: int, printed: str) -> None:
    """Each in a process of its own, which tells by its exit code which way it took."""
    imports = ["import atexit, threading, time", "from mmf_win.worker.entry import exit_immediately"]
    program = "\n".join([*imports, *lines, "exit_immediately(3)", "raise SystemExit(4)"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stdout) == (code, printed)
