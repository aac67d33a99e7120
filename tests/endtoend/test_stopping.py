"""Real ``mmfw`` processes that get real signals while an injected fault holds their worker at a certain point.

On Windows, a program can send another one only Ctrl+Break, and only to a process group that it created.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmf_win.locking import file_lock
from mmf_win.protocol import AttemptOutcome, read_events
from mmf_win.runs.folder import Run
from mmf_win.runs.history import RunRecord, run_state
from mmf_win.runs.lookup import list_runs
from mmf_win.signals import FORCE_STOP_AFTER_SECONDS
from tests.endtoend.conftest import (
    CTRL_C,
    INTERRUPTED_EXIT_CODE,
    RunningCommand,
    SetFaults,
    Tool,
    endless_training,
    read_events_of_kind,
    start_command,
    start_updates,
)
from tests.worlds.liveness import LivenessMonitor, liveness_monitor
from tests.worlds.process_tree import signal_process_tree
from tests.worlds.tools import mark_wide, requires_console_events

_WINDOWS = sys.platform == "win32"
_TERM = signal.CTRL_BREAK_EVENT if sys.platform == "win32" else signal.SIGTERM


def assert_resumes(tool: Tool, run: Run) -> None:
    """Resume the run for one more update and check that it starts at its last update."""
    last_update = RunRecord.read(run).summary.updates
    result = tool("train", "--resume", "last", "--updates", str(last_update + 1), "training.num_workers=0")
    assert (result["state"], result["updates"]) == ("done", last_update + 1)
    assert start_updates(run) == [0, last_update]


@requires_console_events
@pytest.mark.parametrize(("signal_number", "workers"), mark_wide([(CTRL_C, 0), (_TERM, 2)], except_for=[(CTRL_C, 0)]))
def test_first_signal_saves_checkpoint_and_run_resumes_from_it(tool: Tool, signal_number: int, workers: int) -> None:
    with start_command(tool, *endless_training(tool, workers)) as command:
        run = command.wait_for_event("train")
        command.process.send_signal(signal_number)
        assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE
    assert "saving… press Ctrl+C again to end at once" in command.output
    updates = RunRecord.read(run).summary.updates
    assert f"stopped at update {updates}; checkpoint saved\nresume with `mmfw train" in command.output
    assert "--resume last" in command.output and "error" not in command.output
    assert run_state(run) == "interrupted"
    assert_resumes(tool, run)


@pytest.mark.wide
def test_run_in_use_by_prediction_is_not_removed(tool: Tool, set_faults: SetFaults, tmp_path: Path) -> None:
    run, reached = tool.get_trained_run("vilbert"), tmp_path / "reached"
    set_faults({"at": "validation", "do": "wait", "once": str(reached)})
    remove = ("runs", "rm", run.id, "--yes")
    with start_command(tool, "predict", run.id, "--no-report") as command:
        command.wait_until(reached.exists)
        assert tool.run_for_exit_code(*remove) == 8
        assert f"run {run.id} is in use by a prediction" in tool.errors
        reached.with_name(f"{reached.name}.go").touch()
        assert command.wait_for_exit() == 0, command.output
    assert tool.run_for_exit_code(*remove) == 0
    assert not run.path.exists()


@requires_console_events
def test_ctrl_c_during_import_of_mmf_ends_training_at_once(tool: Tool) -> None:
    with start_command(tool, *endless_training(tool)) as command:
        run = command.wait_for_event("run_started")
        command.process.send_signal(CTRL_C)
        assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE
    assert "nothing new to save" in command.output and "--resume" not in command.output
    assert {e["kind"] for e in read_events(run.events)} == {"run_started", "run_ended"}


@pytest.mark.wide
@requires_console_events
def test_signal_before_first_update_ends_training_at_once(tool: Tool, set_faults: SetFaults, tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    set_faults({"at": "forward", "do": "hang", "update": 1, "once": str(reached)})
    with start_command(tool, *endless_training(tool, workers=2)) as command:
        command.wait_until(reached.exists)
        command.process.send_signal(_TERM)
        assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE
    assert "nothing new to save" in command.output


@requires_console_events
@pytest.mark.parametrize("point", mark_wide(["validation", "saved"], except_for=("saved",)))
def test_ctrl_c_during_validation_or_save_saves_checkpoint(
    tool: Tool, set_faults: SetFaults, tmp_path: Path, point: str
) -> None:
    reached = tmp_path / "reached"
    set_faults({"at": point, "do": "wait", "once": str(reached)})
    intervals = ("training.evaluation_interval=2", "training.checkpoint_interval=2")
    with start_command(tool, *endless_training(tool), *intervals) as command:
        command.wait_until(reached.exists)
        (run,) = list_runs(tool.save_dir)
        command.process.send_signal(CTRL_C)
        command.wait_for_output("press Ctrl+C again")
        reached.with_name("reached.go").touch()
        assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE
    assert RunRecord.read(run).summary.updates >= 2
    assert_resumes(tool, run)


@requires_console_events
def test_ctrl_c_ends_prediction_at_once_without_result(tool: Tool, set_faults: SetFaults, tmp_path: Path) -> None:
    run = tool.get_trained_run("vilbert")
    reached = tmp_path / "reached"
    set_faults({"at": "validation", "do": "hang", "once": str(reached)})
    with start_command(tool, "predict") as command:
        command.wait_until(reached.exists)
        command.process.send_signal(CTRL_C)
        assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE
    assert "stopping" in command.output and "--resume" not in command.output
    assert not list(run.reports.glob("*.csv"))
    assert run_state(run) == "done", "an interrupted prediction must not count as an interrupted training"


@requires_console_events
def test_ctrl_c_at_end_of_prediction_cancels_remaining_splits(
    tool: Tool, set_faults: SetFaults, tmp_path: Path
) -> None:
    run, reached = tool.get_trained_run("vilbert"), tmp_path / "reached"
    set_faults({"at": "ending", "do": "wait", "once": str(reached)})
    with start_command(tool, "predict", "--split", "dev_seen", "--split", "test_seen") as command:
        command.wait_until(reached.exists)
        command.process.send_signal(CTRL_C)
        command.wait_for_output("press Ctrl+C again")
        reached.with_name("reached.go").touch()
        assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE, command.output
    assert len([*run.path.glob("attempts/*")]) == 2, "only training and the first split must have an attempt"
    assert not list(run.reports.iterdir())


def create_hanging_faults(monitor: LivenessMonitor, hanging: Path) -> list[dict[str, Any]]:
    """Return faults: the worker and its two DataLoader workers connect to the monitor, then the worker hangs.

    It hangs in C while it holds the GIL.
    """
    port = int(monitor.port)
    return [
        {"at": "loader", "do": "connect", "port": port, "once": str(hanging.with_name("connected"))},
        {"at": "loader_worker", "do": "connect", "port": port},
        {"at": "forward", "do": "hang_in_c", "update": 3, "once": str(hanging)},
    ]


def stop_with_second_ctrl_c(command: RunningCommand) -> None:
    command.process.send_signal(CTRL_C)
    command.wait_for_output("press Ctrl+C again")
    time.sleep(FORCE_STOP_AFTER_SECONDS)  # the first Ctrl+C was counted before the message was printed
    command.process.send_signal(CTRL_C)
    assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE


def stop_without_progress(command: RunningCommand) -> None:
    command.process.send_signal(CTRL_C)
    assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE
    assert "lack of progress" in command.output


def kill_command(command: RunningCommand) -> None:
    command.process.kill()
    assert command.wait_for_exit() == (1 if _WINDOWS else -9)


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(stop_with_second_ctrl_c, marks=requires_console_events),
        pytest.param(stop_without_progress, marks=(requires_console_events, pytest.mark.wide)),
        pytest.param(kill_command, marks=pytest.mark.wide),
    ],
)
def test_hanging_worker_and_its_loader_workers_are_killed(
    tool: Tool, set_faults: SetFaults, tmp_path: Path, stop: Callable[[RunningCommand], None]
) -> None:
    timeout = ("--stop-timeout", "600" if stop is stop_with_second_ctrl_c else "0.5")
    hanging = tmp_path / "hanging"
    with liveness_monitor() as monitor:
        set_faults(*create_hanging_faults(monitor, hanging))
        with start_command(tool, *endless_training(tool, workers=2), *timeout) as command:
            monitor.wait_for_processes(3)
            command.wait_until(hanging.exists)
            stop(command)
        assert monitor.wait_until_all_exited()


@pytest.mark.skipif(_WINDOWS, reason="on Windows the worker ends with its parent, as the previous test shows")
def test_worker_saves_checkpoint_and_exits_after_parent_is_killed(tool: Tool) -> None:
    with start_command(tool, *endless_training(tool)) as command:
        runs = command.wait_until(lambda: list_runs(tool.save_dir))
        assert run_state(runs[0]) == "running", "the run must be running as soon as it is listed"
        run = command.wait_for_event("train")
        kill_command(command)
    with file_lock(run.training_lock_file, timeout=120):
        assert AttemptOutcome.load(run.outcome_file), "the worker must hold the lock until it ends"
    assert run_state(run) == "interrupted"
    assert_resumes(tool, run)


@pytest.mark.wide
@pytest.mark.skipif(_WINDOWS, reason="on Windows, no signal reaches a process without a shared console")
def test_signal_to_worker_saves_checkpoint(tool: Tool) -> None:
    with start_command(tool, *endless_training(tool)) as command:
        run = command.wait_for_event("train")
        (started,) = read_events_of_kind(run, "run_started")
        os.kill(started["pid"], signal.SIGTERM)
        assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE
    assert_resumes(tool, run)


@pytest.mark.wide
def test_worker_that_does_not_exit_after_training_does_not_block_command(tool: Tool, set_faults: SetFaults) -> None:
    set_faults({"at": "forward", "do": "linger", "update": 1})
    result = tool("train", tool.write_preset("vilbert"), "--updates", "1")
    assert result["state"] == "done"


@pytest.mark.skipif(_WINDOWS, reason="Windows has no signals for all processes of a job")
@pytest.mark.parametrize(
    ("signal_name", "workers"), mark_wide([("SIGTERM", 2), ("SIGUSR1", 2)], except_for=[("SIGTERM", 2)])
)
def test_signal_to_all_training_processes_saves_checkpoint(tool: Tool, signal_name: str, workers: int) -> None:
    with start_command(tool, *endless_training(tool, workers)) as command:
        run = command.wait_for_event("train")
        signal_process_tree(command.process.pid, getattr(signal, signal_name))
        assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE, command.output
    updates = RunRecord.read(run).summary.updates
    assert f"stopped at update {updates}; checkpoint saved" in command.output
    assert (run.checkpoints / "current.ckpt").is_file() and run_state(run) == "interrupted"


@requires_console_events
@pytest.mark.parametrize("action", mark_wide(["hang", "wait_and_kill"], except_for=["hang"]))
def test_training_saves_although_loader_hangs_or_dies_after_stop_request(
    tool: Tool, set_faults: SetFaults, tmp_path: Path, action: str
) -> None:
    waiting = tmp_path / "waiting"
    set_faults({"at": "fetch", "above": 0, "do": action, "once": str(waiting)})
    with start_command(tool, *endless_training(tool, workers=2)) as command:
        run = command.wait_for_event("train")
        command.wait_until(waiting.exists)
        command.process.send_signal(_TERM)
        command.wait_for_output("press Ctrl+C again")
        waiting.with_name("waiting.go").touch()
        assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE
    assert (run.checkpoints / "current.ckpt").is_file() and run_state(run) == "interrupted", command.output


@pytest.mark.skipif(_WINDOWS, reason="Windows has no such signals")
@pytest.mark.parametrize("signal_name", mark_wide(["SIGHUP", "SIGTERM", "SIGUSR1", "SIGUSR2"], except_for=["SIGHUP"]))
def test_repeated_signal_is_one_stop_request(tool: Tool, signal_name: str) -> None:
    with start_command(tool, *endless_training(tool)) as command:
        run = command.wait_for_event("train")
        command.process.send_signal(getattr(signal, signal_name))
        command.wait_for_output("press Ctrl+C again")
        command.process.send_signal(getattr(signal, signal_name))
        assert command.wait_for_exit() == INTERRUPTED_EXIT_CODE
    assert (run.checkpoints / "current.ckpt").is_file() and run_state(run) == "interrupted", command.output


@pytest.mark.skipif(_WINDOWS, reason="Windows does not let a process start with ignored signals")
def test_ctrl_c_ignored_at_start_does_not_stop_training(tool: Tool) -> None:
    previous_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for a job in the background
    try:
        with start_command(tool, "train", tool.write_preset("vilbert"), "--updates", "6") as command:
            run = command.wait_for_event("train_started")
            command.process.send_signal(signal.SIGINT)
            assert command.wait_for_exit() == 0
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    assert (run_state(run), RunRecord.read(run).summary.updates) == ("done", 6)
