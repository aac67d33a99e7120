"""Which run a command of a task goes on with, and which is another command's."""

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

# It refuses at once, so a task with it fails unless it takes it for done.
_TEMPLATE = "mmfw train nope [seed]"


def _run(
    folder: Path, runs: dict[str, dict[str, str]], template: str = _TEMPLATE, seconds: float = 0.0
) -> Task:
    """What becomes of a task that an earlier driver has begun, and that has these runs."""
    sweep, task = SweepFolder(folder), Task("task", {"seed": 1}, ("one",))
    replace(write_ended_task(sweep, task, "queued"), runs=runs, seconds=seconds).save(
        sweep.task_folder("task")
    )
    return TaskRunner(sweep, {"one": template}, False, forbid_resume, "now").run(
        task, Slot(0, "cpu", {}), lambda _: None
    )


@pytest.fixture
def done(user_dir: Path) -> dict[str, str]:
    """A finished run in the task's folder, as the first command would have noted it."""
    folder = SweepFolder(user_dir).task_folder("task")
    made = write_finished_run(folder, 0.7)
    return {"script": "mmfw train nope --seed 1", "run": made.path.relative_to(folder.path).as_posix()}


def test_a_training_that_ended_while_nobody_watched_is_done(user_dir: Path, done: dict[str, str]) -> None:
    after = _run(user_dir, {"one": done})
    assert (after.state, after.finished) == ("success", ("one",))


@pytest.mark.parametrize("of", ["another command", "other words", "a folder outside"])
def test_a_run_that_is_not_its_own_is_not_gone_on_with(user_dir: Path, done: dict[str, str], of: str) -> None:
    template = _TEMPLATE + (" training.batch_size=8" if of == "other words" else "")
    run = {**done, "run": f"../task/{done['run']}"} if of == "a folder outside" else done
    runs = {"two" if of == "another command" else "one": run}
    assert _run(user_dir, runs, template).state == "failed"


def test_a_run_that_failed_without_a_checkpoint_begins_again(user_dir: Path, done: dict[str, str]) -> None:
    AttemptOutcome("nan", "a loss is no number").save(Run(user_dir / "task" / done["run"]).outcome_file)
    after = _run(user_dir, {"one": done})
    assert after.state == "failed" and "nope" in str(after.message)


def test_the_time_of_a_task_is_that_of_all_its_starts(user_dir: Path, done: dict[str, str]) -> None:
    began = time.monotonic()
    after = _run(user_dir, {"one": done}, seconds=100.0)
    assert 100.0 <= after.seconds <= 100.0 + time.monotonic() - began
