"""Runs that a command of a task resumes, and runs that belong to other commands."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from mmf_win.protocol import AttemptOutcome
from mmf_win.runs.folder import Run
from mmf_win.sweeps.folder import SweepFolder, Task
from mmf_win.sweeps.task_runner import Slot, TaskRunner
from tests.worlds.small_sweeps import forbid_resume, write_ended_task, write_finished_run

# The preset does not exist, so a task with this command fails unless its run is done.
_TEMPLATE = "mmfw train nope [seed]"


def _run(folder: Path, runs: dict[str, dict[str, str]], template: str = _TEMPLATE, seconds: float = 0.0) -> Task:
    """Run a task that an earlier driver has started with these runs."""
    sweep, task = SweepFolder(folder), Task("task", {"seed": 1}, ("one",))
    replace(write_ended_task(sweep, task, "queued"), runs=runs, seconds=seconds).save(sweep.task_folder("task"))
    return TaskRunner(sweep, {"one": template}, shell=False, resume=forbid_resume, timestamp="now").run(
        task, Slot(0, "cpu", {}), lambda _: None
    )


@pytest.fixture
def finished_run(user_dir: Path) -> dict[str, str]:
    """Write the record of a finished run to the task's folder, like its first command."""
    folder = SweepFolder(user_dir).task_folder("task")
    run = write_finished_run(folder, 0.7)
    return {"script": "mmfw train nope --seed 1", "run": run.path.relative_to(folder.path).as_posix()}


def test_training_that_finished_without_a_driver_is_done(user_dir: Path, finished_run: dict[str, str]) -> None:
    after = _run(user_dir, {"one": finished_run})
    assert (after.state, after.finished_commands) == ("success", ("one",))


@pytest.mark.parametrize("owner", ["another command", "other arguments", "a folder outside"])
def test_run_of_another_command_is_not_resumed(user_dir: Path, finished_run: dict[str, str], owner: str) -> None:
    template = _TEMPLATE + (" training.batch_size=8" if owner == "other arguments" else "")
    run = {**finished_run, "run": f"../task/{finished_run['run']}"} if owner == "a folder outside" else finished_run
    runs = {"two" if owner == "another command" else "one": run}
    assert _run(user_dir, runs, template).state == "failed"


def test_failed_run_without_a_checkpoint_starts_again(user_dir: Path, finished_run: dict[str, str]) -> None:
    AttemptOutcome("nan", "a loss is no number").save(Run(user_dir / "task" / finished_run["run"]).outcome_file)
    after = _run(user_dir, {"one": finished_run})
    assert after.state == "failed" and "nope" in str(after.message)


def test_task_time_covers_all_starts(user_dir: Path, finished_run: dict[str, str]) -> None:
    start_time = time.monotonic()
    after = _run(user_dir, {"one": finished_run}, seconds=100.0)
    assert 100.0 <= after.seconds <= 100.0 + time.monotonic() - start_time
