"""Slots of a driver, with functions instead of the processes of tasks."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from mmf_win.locking import file_lock
from mmf_win.sweeps import driver as driver_module
from mmf_win.sweeps.driver import Driver
from mmf_win.sweeps.folder import SweepFolder, Task
from mmf_win.sweeps.task_runner import OnUpdate, Slot, TaskSignals, TaskUpdate

_TIMEOUT_SECONDS = 5.0  # seconds that a task waits for an immediate action of the driver

Execute = Callable[[Task, Slot, OnUpdate, Callable[[], TaskSignals]], Task]


def make_task(number: int) -> Task:
    """Return a task with one command."""
    return Task(f"N_{number}", {"n": number}, ("c",), order=number)


def make_driver(folder: Path, execute: Execute, show: Callable[[Slot, TaskUpdate], None]) -> Driver:
    """Return a driver with two slots on the CPU."""
    return Driver(SweepFolder(folder), [Slot(number, "cpu", {}) for number in range(2)], execute, show)


def test_running_tasks_are_stopped_when_the_driver_fails(tmp_path: Path) -> None:
    is_running = threading.Event()
    stop_counts: list[int] = []

    def execute(task: Task, _slot: Slot, on_update: OnUpdate, stops: Callable[[], TaskSignals]) -> Task:
        if task.order == 0:
            assert is_running.wait(_TIMEOUT_SECONDS)
            on_update(task)
        else:
            is_running.set()
            deadline = time.monotonic() + _TIMEOUT_SECONDS
            while not stops().stop_count and time.monotonic() < deadline:
                time.sleep(0.01)
            stop_counts.append(stops().stop_count)
        return replace(task, state="success")

    def show(_slot: Slot, _update: TaskUpdate) -> None:
        raise OSError("the display is gone")

    with pytest.raises(OSError, match="the display is gone"):
        make_driver(tmp_path, execute, show).run([make_task(0), make_task(1)])
    assert stop_counts == [1]


def test_task_released_by_another_driver_starts_while_a_slot_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "RESCAN_SECONDS", 0.0)
    locked_task, free_task = make_task(0), make_task(1)
    lock = SweepFolder(tmp_path).task_folder(locked_task.name).lock
    lock.parent.mkdir()
    is_taken = threading.Event()
    was_taken_in_time: list[bool] = []

    with ExitStack() as other_driver:
        other_driver.enter_context(file_lock(lock))

        def execute(task: Task, _slot: Slot, _on_update: OnUpdate, _stops: Callable[[], TaskSignals]) -> Task:
            if task == free_task:
                other_driver.close()
                was_taken_in_time.append(is_taken.wait(_TIMEOUT_SECONDS))
            else:
                is_taken.set()
            return replace(task, state="success")

        running_driver = make_driver(tmp_path, execute, lambda _slot, _update: None)
        assert running_driver.run([locked_task, free_task]) is False
    assert was_taken_in_time == [True]
    assert {task_state.state for task_state in running_driver.tasks.values()} == {"success"}


def test_task_error_does_not_stop_other_tasks_unless_locks_are_unsupported(tmp_path: Path) -> None:
    error = OSError(errno.EIO, "the disk fails")

    def execute(task: Task, _slot: Slot, _on_update: OnUpdate, _stops: Callable[[], TaskSignals]) -> Task:
        if task.order == 0:
            raise error
        return replace(task, state="success")

    running_driver = make_driver(tmp_path, execute, lambda _slot, _update: None)
    assert running_driver.run([make_task(0), make_task(1)]) is False
    assert [task_state.state for task_state in running_driver.tasks.values()] == ["failed", "success"]
    error = OSError(errno.ENOLCK, "no locks")
    with pytest.raises(OSError, match="no locks"):
        make_driver(tmp_path, execute, lambda _slot, _update: None).run([make_task(0), make_task(1)])
