"""Real ``mmfw`` processes that get real signals, at moments that a fault in their worker holds on to.

On Windows one program can send another only Ctrl+Break, and only to a process group that it has made.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mmf_win.locking import file_lock
from mmf_win.protocol import AttemptOutcome, read_events
from mmf_win.runs.folder import Run
from mmf_win.runs.history import RunRecord, run_state
from mmf_win.runs.lookup import list_runs
from mmf_win.signals import FORCE_STOP_AFTER_SECONDS
from tests.endtoend.conftest import SetFaults, Tool, read_events_of_kind, start_updates
from tests.worlds.liveness import LivenessMonitor, liveness_monitor
from tests.worlds.process_tree import signal_process_tree
from tests.worlds.tools import mark_wide, requires_console_events

_INTERRUPTED = 130
_WINDOWS = sys.platform == "win32"
_CTRL_C = signal.CTRL_BREAK_EVENT if sys.platform == "win32" else signal.SIGINT
_TERM = signal.CTRL_BREAK_EVENT if sys.platform == "win32" else signal.SIGTERM


class User:
    """Who typed a command, the process, and waits for the prompt."""

    def __init__(self, process: subprocess.Popen[str], tool: Tool) -> None:
        self.process = process
        self._tool = tool
        self.read = ""

    def sees(self, kind: str) -> Run:
        """Wait until the run has told of something."""
        told: list[Run] = self.waits_for(
            lambda: [r for r in list_runs(self._tool.save_dir) if read_events_of_kind(r, kind)]
        )
        return told[0]

    def waits_for(self, something: Callable[[], Any]) -> Any:
        """Wait until there is something, unless the command ends."""
        while not (found := something()):
            assert self.process.poll() is None, "it has ended"
            time.sleep(0.02)
        return found

    def gets_the_prompt_back(self) -> int:
        """The exit code; what was said is in ``read``."""
        assert self.process.stderr is not None
        self.read += self.process.stderr.read()
        return self.process.wait()

    def reads(self, text: str) -> None:
        """Wait until the command has said something."""
        assert self.process.stderr is not None
        while text not in self.read:
            line = self.process.stderr.readline()
            assert line, f"{text!r} is not in {self.read!r}"
            self.read += line


@contextmanager
def user(tool: Tool, *words: str) -> Iterator[User]:
    """Somebody who types ``mmfw`` and words."""
    places = ("--data-dir", str(tool.world.data), "--save-dir", str(tool.save_dir))
    command = [sys.executable, "-m", "mmf_win", *words, *places]
    group = subprocess.CREATE_NEW_PROCESS_GROUP if sys.platform == "win32" else 0
    environ = {**os.environ, "PYTHONUTF8": "1"}  # what mmfw says is read as UTF-8
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, encoding="utf-8", creationflags=group, env=environ
    ) as process:
        try:
            yield User(process, tool)
        finally:
            process.kill()


def endless(tool: Tool, workers: int = 0) -> list[str]:
    """A training that only a signal ends."""
    every = ("training.log_interval=1", f"training.num_workers={workers}")
    return ["train", tool.preset("vilbert"), "--updates", "100000", *every]


def goes_on(tool: Tool, run: Run) -> None:
    """The run can be resumed, and counts on from what it had."""
    reached = RunRecord.read(run).summary.updates
    result = tool("train", "--resume", "last", "--updates", str(reached + 1), "training.num_workers=0")
    assert (result["state"], result["updates"]) == ("done", reached + 1)
    assert start_updates(run) == [0, reached]


@requires_console_events
@pytest.mark.parametrize(("number", "workers"), mark_wide([(_CTRL_C, 0), (_TERM, 2)], except_for=[(_CTRL_C, 0)]))
def test_the_first_signal_saves_and_resume_goes_on_from_there(tool: Tool, number: int, workers: int) -> None:
    with user(tool, *endless(tool, workers)) as somebody:
        run = somebody.sees("train")
        somebody.process.send_signal(number)
        assert somebody.gets_the_prompt_back() == _INTERRUPTED
    assert "saving… press Ctrl+C again to end at once" in somebody.read
    updates = RunRecord.read(run).summary.updates
    assert f"stopped at update {updates}; checkpoint saved\nresume with `mmfw train" in somebody.read
    assert "--resume last" in somebody.read and "error" not in somebody.read
    assert run_state(run) == "interrupted"
    goes_on(tool, run)


@pytest.mark.wide
def test_a_run_that_predicts_is_not_removed_until_it_has_ended(
    tool: Tool, set_faults: SetFaults, tmp_path: Path
) -> None:
    run, midst = tool.get_trained_run("vilbert"), tmp_path / "in the midst"
    set_faults({"at": "validation", "do": "wait", "once": str(midst)})
    remove = ("runs", "rm", run.id, "--yes")
    with user(tool, "predict", run.id, "--no-report") as somebody:
        somebody.waits_for(midst.exists)
        assert tool.run_for_exit_code(*remove) == 8
        assert f"run {run.id} is in use by a prediction" in tool.errors
        midst.with_name(f"{midst.name}.go").touch()
        assert somebody.gets_the_prompt_back() == 0, somebody.read
    assert tool.run_for_exit_code(*remove) == 0
    assert not run.path.exists()


@requires_console_events
def test_while_mmf_is_imported_it_leaves_at_once(tool: Tool) -> None:
    with user(tool, *endless(tool)) as somebody:
        run = somebody.sees("run_started")
        somebody.process.send_signal(_CTRL_C)
        assert somebody.gets_the_prompt_back() == _INTERRUPTED
    assert "nothing new to save" in somebody.read and "--resume" not in somebody.read
    assert {e["kind"] for e in read_events(run.events)} == {"run_started", "run_ended"}


@pytest.mark.wide
@requires_console_events
def test_before_the_first_update_it_leaves_at_once(tool: Tool, set_faults: SetFaults, tmp_path: Path) -> None:
    here = tmp_path / "here"
    set_faults({"at": "forward", "do": "hang", "update": 1, "once": str(here)})
    with user(tool, *endless(tool, workers=2)) as somebody:
        somebody.waits_for(here.exists)
        somebody.process.send_signal(_TERM)
        assert somebody.gets_the_prompt_back() == _INTERRUPTED
    assert "nothing new to save" in somebody.read


@requires_console_events
@pytest.mark.parametrize("moment", mark_wide(["validation", "saved"], except_for=("saved",)))
def test_in_a_validation_and_in_a_save_it_saves_and_leaves(
    tool: Tool, set_faults: SetFaults, tmp_path: Path, moment: str
) -> None:
    here = tmp_path / "here"
    set_faults({"at": moment, "do": "wait", "once": str(here)})
    often = ("training.evaluation_interval=2", "training.checkpoint_interval=2")
    with user(tool, *endless(tool), *often) as somebody:
        somebody.waits_for(here.exists)
        (run,) = list_runs(tool.save_dir)
        somebody.process.send_signal(_CTRL_C)
        somebody.reads("press Ctrl+C again")
        here.with_name("here.go").touch()
        assert somebody.gets_the_prompt_back() == _INTERRUPTED
    assert RunRecord.read(run).summary.updates >= 2
    goes_on(tool, run)


@requires_console_events
def test_a_prediction_leaves_at_once_and_without_a_result(tool: Tool, set_faults: SetFaults, tmp_path: Path) -> None:
    run = tool.get_trained_run("vilbert")
    here = tmp_path / "here"
    set_faults({"at": "validation", "do": "hang", "once": str(here)})
    with user(tool, "predict") as somebody:
        somebody.waits_for(here.exists)
        somebody.process.send_signal(_CTRL_C)
        assert somebody.gets_the_prompt_back() == _INTERRUPTED
    assert "stopping" in somebody.read and "--resume" not in somebody.read
    assert not list(run.reports.glob("*.csv"))
    assert run_state(run) == "done", "an interrupted prediction is not an interrupted training"


@requires_console_events
def test_after_ctrl_c_in_the_last_moment_of_a_prediction_nothing_follows(
    tool: Tool, set_faults: SetFaults, tmp_path: Path
) -> None:
    run, here = tool.get_trained_run("vilbert"), tmp_path / "here"
    set_faults({"at": "ending", "do": "wait", "once": str(here)})
    with user(tool, "predict", "--split", "dev_seen", "--split", "test_seen") as somebody:
        somebody.waits_for(here.exists)
        somebody.process.send_signal(_CTRL_C)
        somebody.reads("press Ctrl+C again")
        here.with_name("here.go").touch()
        assert somebody.gets_the_prompt_back() == _INTERRUPTED, somebody.read
    assert len([*run.path.glob("attempts/*")]) == 2, "one trained, and one predicted the first split"
    assert not list(run.reports.iterdir())


def connecting(held: LivenessMonitor, hangs: Path) -> list[dict[str, Any]]:
    """The worker and its two DataLoader workers hold a connection each; then it hangs in C, with the GIL."""
    port = int(held.port)
    return [
        {"at": "loader", "do": "connect", "port": port, "once": str(hangs.with_name("connected"))},
        {"at": "loader_worker", "do": "connect", "port": port},
        {"at": "forward", "do": "hang_in_c", "update": 3, "once": str(hangs)},
    ]


def ends_at_a_second_ctrl_c(somebody: User) -> None:
    somebody.process.send_signal(_CTRL_C)
    somebody.reads("press Ctrl+C again")
    time.sleep(FORCE_STOP_AFTER_SECONDS)  # the first one was counted before it was answered
    somebody.process.send_signal(_CTRL_C)
    assert somebody.gets_the_prompt_back() == _INTERRUPTED


def ends_without_progress(somebody: User) -> None:
    somebody.process.send_signal(_CTRL_C)
    assert somebody.gets_the_prompt_back() == _INTERRUPTED
    assert "lack of progress" in somebody.read


def dies(somebody: User) -> None:
    somebody.process.kill()
    assert somebody.gets_the_prompt_back() == (1 if _WINDOWS else -9)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(ends_at_a_second_ctrl_c, marks=requires_console_events),
        pytest.param(ends_without_progress, marks=(requires_console_events, pytest.mark.wide)),
        pytest.param(dies, marks=pytest.mark.wide),
    ],
)
def test_nothing_of_a_worker_that_hangs_survives(
    tool: Tool, set_faults: SetFaults, tmp_path: Path, end: Callable[[User], None]
) -> None:
    timeout = ("--stop-timeout", "600" if end is ends_at_a_second_ctrl_c else "0.5")
    hangs = tmp_path / "hangs"
    with liveness_monitor() as held:
        set_faults(*connecting(held, hangs))
        with user(tool, *endless(tool, workers=2), *timeout) as somebody:
            held.wait_for_processes(3)
            somebody.waits_for(hangs.exists)
            end(somebody)
        assert held.has_only_dead_processes()


@pytest.mark.skipif(_WINDOWS, reason="on Windows the worker ends with its parent, as the test above shows")
def test_a_worker_whose_parent_was_killed_saves_and_leaves(tool: Tool) -> None:
    with user(tool, *endless(tool)) as somebody:
        runs = somebody.waits_for(lambda: list_runs(tool.save_dir))
        assert run_state(runs[0]) == "running", "from the moment that it is listed"
        run = somebody.sees("train")
        dies(somebody)
    with file_lock(run.training_lock_file, timeout=120):
        assert AttemptOutcome.load(run.outcome_file), "the lock is held until the worker has ended"
    assert run_state(run) == "interrupted"
    goes_on(tool, run)


@pytest.mark.wide
@pytest.mark.skipif(_WINDOWS, reason="on Windows no signal reaches a process without a console in common")
def test_a_signal_to_the_worker_itself_saves_too(tool: Tool) -> None:
    with user(tool, *endless(tool)) as somebody:
        run = somebody.sees("train")
        (started,) = read_events_of_kind(run, "run_started")
        os.kill(started["pid"], signal.SIGTERM)
        assert somebody.gets_the_prompt_back() == _INTERRUPTED
    goes_on(tool, run)


@pytest.mark.wide
def test_a_worker_that_does_not_leave_after_the_end_does_not_keep_the_prompt(tool: Tool, set_faults: SetFaults) -> None:
    set_faults({"at": "forward", "do": "linger", "update": 1})
    result = tool("train", tool.preset("vilbert"), "--updates", "1")
    assert result["state"] == "done"


@pytest.mark.skipif(_WINDOWS, reason="Windows has no signals for all processes of a job")
@pytest.mark.parametrize(("name", "workers"), mark_wide([("SIGTERM", 2), ("SIGUSR1", 2)], except_for=[("SIGTERM", 2)]))
def test_a_signal_to_every_process_of_a_training_saves(tool: Tool, name: str, workers: int) -> None:
    with user(tool, *endless(tool, workers)) as somebody:
        run = somebody.sees("train")
        signal_process_tree(somebody.process.pid, getattr(signal, name))
        assert somebody.gets_the_prompt_back() == _INTERRUPTED, somebody.read
    updates = RunRecord.read(run).summary.updates
    assert f"stopped at update {updates}; checkpoint saved" in somebody.read
    assert (run.checkpoints / "current.ckpt").is_file() and run_state(run) == "interrupted"


@requires_console_events
@pytest.mark.parametrize("do", mark_wide(["hang", "wait_and_kill"], except_for=["hang"]))
def test_a_loader_that_hangs_or_dies_after_a_stop_request_does_not_keep_a_training_from_saving(
    tool: Tool, set_faults: SetFaults, tmp_path: Path, do: str
) -> None:
    waits = tmp_path / "waits"
    set_faults({"at": "fetch", "above": 0, "do": do, "once": str(waits)})
    with user(tool, *endless(tool, workers=2)) as somebody:
        run = somebody.sees("train")
        somebody.waits_for(waits.exists)
        somebody.process.send_signal(_TERM)
        somebody.reads("press Ctrl+C again")
        waits.with_name("waits.go").touch()
        assert somebody.gets_the_prompt_back() == _INTERRUPTED
    assert (run.checkpoints / "current.ckpt").is_file() and run_state(run) == "interrupted", somebody.read


@pytest.mark.skipif(_WINDOWS, reason="Windows has no such signals")
@pytest.mark.parametrize("name", mark_wide(["SIGHUP", "SIGTERM", "SIGUSR1", "SIGUSR2"], except_for=["SIGHUP"]))
def test_a_signal_that_comes_twice_is_one_request(tool: Tool, name: str) -> None:
    with user(tool, *endless(tool)) as somebody:
        run = somebody.sees("train")
        somebody.process.send_signal(getattr(signal, name))
        somebody.reads("press Ctrl+C again")
        somebody.process.send_signal(getattr(signal, name))
        assert somebody.gets_the_prompt_back() == _INTERRUPTED
    assert (run.checkpoints / "current.ckpt").is_file() and run_state(run) == "interrupted", somebody.read


@pytest.mark.skipif(_WINDOWS, reason="Windows does not let a process start with ignored signals")
def test_ctrl_c_that_was_ignored_when_training_began_does_not_stop_it(tool: Tool) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for a job in the background
    try:
        with user(tool, "train", tool.preset("vilbert"), "--updates", "6") as somebody:
            run = somebody.sees("train_started")
            somebody.process.send_signal(signal.SIGINT)
            assert somebody.gets_the_prompt_back() == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert (run_state(run), RunRecord.read(run).summary.updates) == ("done", 6)
