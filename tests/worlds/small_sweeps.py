"""Sweeps of small programs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from mmf_win.protocol import AttemptOutcome
from mmf_win.runs.folder import Run
from mmf_win.runs.request import RunRequest
from mmf_win.sweeps.folder import SweepFolder, Task, TaskFolder, TaskState, write_yaml
from mmf_win.sweeps.planning import list_tasks
from mmf_win.sweeps.specification import Specification, parse_specification
from tests.worlds.event_log import EventLog
from tests.worlds.memes import RUN_SPLITS
from tests.worlds.report_world import create_train_attempt

ROOT = Path(__file__).parents[2]

# Logs its begin and end, and waits between them for a file, which the test creates.
_GATED_PROGRAM = """
import pathlib, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
def log(event):
    with (folder / "journal").open("a") as journal:
        journal.write(event + " " + name + chr(10))
log("begin")
while not ((folder / "open").exists() or (folder / ("open-" + name)).exists()):
    time.sleep(0.01)
log("end")
"""


def python_command(folder: Path, program: str, *arguments: str) -> str:
    """Write a Python program to a folder and return a template of its command; arguments may be placeholders."""
    file = folder / f"program-{sha256(program.encode()).hexdigest()[:6]}.py"
    file.write_text(program, encoding="utf-8")
    return " ".join([shlex.join([Path(sys.executable).as_posix(), file.as_posix()]), *arguments])


def gated_command(folder: Path, prelude: str = "") -> str:
    """Return a template of a command that runs ``prelude`` and then waits for a file; see :func:`read_journal`."""
    return python_command(folder, prelude + _GATED_PROGRAM, shlex.quote(folder.as_posix()), "{n}")


def read_journal(folder: Path) -> list[str]:
    """Return the journal of the gated commands in a folder, as ``begin 3`` and ``end 3``."""
    path = folder / "journal"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def make_specification(text: str) -> Specification:
    """Parse a specification."""
    return parse_specification(text, Path("params.yaml"))


def load_tasks_by_name(output: Path) -> dict[str, Task]:
    """Return the tasks of a sweep by name."""
    return {task.name: task for task in list_tasks(SweepFolder(output))}


def start_sweep_command(*arguments: object, stderr: int = subprocess.STDOUT) -> subprocess.Popen[str]:
    """Start ``mmfw sweep …`` in a new process; by default stderr is redirected to stdout."""
    return subprocess.Popen(
        [sys.executable, "-m", "mmf_win", "sweep", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        encoding="utf-8",
    )


def forbid_resume(arguments: Sequence[str], run: Run) -> list[str]:
    """Raise AssertionError: the runs of the test have no checkpoint to resume from."""
    raise AssertionError(f"{run.path} has no checkpoint")


def write_finished_run(folder: TaskFolder, auroc: float, **metrics: float) -> Run:
    """Write the files of a finished run to a task's folder; the second of its three validations is the best."""
    run = Run(folder.path / "demo" / "2026-01-01T00-00-00")
    run.path.mkdir(parents=True)
    run.save_request(RunRequest(preset="demo", model="vilbert", splits=RUN_SPLITS, data_dir=str(folder.path)))
    for update, score in ((10, auroc - 0.1), (20, auroc), (30, auroc - 0.05)):
        all_metrics = {"auroc": score, "loss": 1 - score, **metrics}
        log = EventLog(run.events, "1")
        log.write("train", update=update, max_updates=40, epoch=1, loss=0.5, lr=0.1, updates_per_s=2.0)
        log.write("val", update=update, metrics=all_metrics, final=False, data={"split": "dev_seen", "rows": 8})
    create_train_attempt(run)
    AttemptOutcome("ok").save(run.outcome_file)
    return run


def write_ended_task(sweep: SweepFolder, task: Task, state: TaskState = "success") -> Task:
    """Write the folder of a task that has ended in a state; a successful task has finished its commands."""
    folder = sweep.task_folder(task.name)
    folder.path.mkdir(parents=True, exist_ok=True)
    write_yaml(folder.param, {**task.values, "_name": task.name})
    ended_task = replace(task, state=state, finished_commands=task.commands if state == "success" else ())
    replace(ended_task, start_count=task.start_count + 1).save(folder)
    return ended_task
