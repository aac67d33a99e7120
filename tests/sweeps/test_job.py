"""Which run a command of a task goes on with, and which is another command's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mmf_win.protocol import Exit
from mmf_win.runs.folder import Run
from mmf_win.sweeps.job import Ending, Job, Watcher, run
from tests.worlds.sweeping import trained

# Both refuse at once, so a task with them fails unless it takes them for done.
_TEMPLATES = {"one": "mmfw train nope [seed]", "two": "mmfw train nope-neither [seed]"}


def _never(words: Sequence[str], begun: Run) -> list[str]:
    raise AssertionError("there is no checkpoint to resume from")


def _job(folder: Path, began: dict[str, dict[str, str]], template: str = _TEMPLATES["one"]) -> Job:
    return Job(str(folder), "task", "task", {"one": template}, {"seed": 1}, False, began, "now")


class _Told(Watcher):
    """Remembers what was finished."""

    def __init__(self) -> None:
        self.finished_ones: list[str] = []

    def finished(self, command: str) -> None:
        self.finished_ones.append(command)


def _ending(job: Job) -> Ending:
    return run(job, _never, _Told())


@pytest.fixture
def done(user_dir: Path) -> dict[str, str]:
    """A finished run in the task's folder, as the first command would have noted it."""
    began = _job(user_dir, {})
    made = trained(began.folder, 0.7)
    return {"script": "mmfw train nope --seed 1", "run": made.path.relative_to(began.folder.path).as_posix()}


def test_a_training_that_ended_while_nobody_watched_is_done(user_dir: Path, done: dict[str, str]) -> None:
    told = _Told()
    assert run(_job(user_dir, {"one": done}), _never, told) == Ending("success")
    assert told.finished_ones == ["one"]


def test_the_run_of_another_command_is_not_taken_for_its_own(user_dir: Path, done: dict[str, str]) -> None:
    assert _ending(_job(user_dir, {"two": done})).state == "failed"


def test_a_run_of_other_words_is_not_gone_on_with(user_dir: Path, done: dict[str, str]) -> None:
    other = "mmfw train nope [seed] training.batch_size=8"
    assert _ending(_job(user_dir, {"one": done}, other)).state == "failed"


def test_a_run_that_failed_without_a_checkpoint_begins_again(user_dir: Path, done: dict[str, str]) -> None:
    job = _job(user_dir, {"one": done})
    Exit("nan", "a loss is no number").save(Run(job.folder.path / done["run"]).exit_file)
    ending = _ending(job)
    assert ending.state == "failed" and "nope" in str(ending.message)
