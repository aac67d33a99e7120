"""A task of a sweep: one combination of values, the commands to run with it, and how far it is.

::

    queued ──claimed──▶ running ──▶ success | failed | pruned
       ▲                   │
       └── stopped, or all that ran it is gone

A task that has begun is what its folder says; the others follow from the sweep's specification. Whoever runs
one holds the lock in its folder, and so does all that was started for it, so nobody else runs it before that
has ended.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal

from mmf_win.errors import DataError
from mmf_win.files import read_json, write_json
from mmf_win.locking import is_locked, locked
from mmf_win.paths import portable_name
from mmf_win.records import known_fields
from mmf_win.sweeps.folder import SweepFolder, TaskFolder, read_yaml, write_yaml
from mmf_win.sweeps.specification import RESERVED, SCRIPTS, Values

State = Literal["queued", "running", "success", "failed", "pruned"]

LONGEST_NAME = 80
"""Bytes of a folder's name: with a run's own files below it, a path on Windows stays below its 260."""

_OF_PARAM = ("name", "values")  # and its folder; what its record need not tell


@dataclass(frozen=True)
class Task:
    """One combination.

    Attributes:
        name: of its folder.
        values: what its commands may use: aliases replaced, defaults added.
        commands: which templates to run, in their order.
        trial: Optuna's number; None where the specification names the values.
        command, message: which runs, or failed, and why.
        slot: where it runs.
        starts, seconds: how often it was begun, and what it took so far.
        finished: the commands that ended well, which do not run again.
        runs: command → its words when it was begun (``script``) and its run of mmfw's (``run``), which is
            resumed where the words are the same.
    """

    name: str
    values: Values
    commands: tuple[str, ...]
    order: int = 0
    trial: int | None = None
    state: State = "queued"
    command: str | None = None
    message: str | None = None
    slot: str | None = None
    starts: int = 0
    seconds: float = 0.0
    finished: tuple[str, ...] = ()
    runs: dict[str, dict[str, str]] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """What tells it from other tasks, whatever the order of its parameters."""
        return json.dumps(self.values, sort_keys=True, default=str)

    @property
    def left(self) -> list[str]:
        """The commands that have not ended well."""
        return [name for name in self.commands if name not in self.finished]

    def asked_for(self, planned: Task) -> Task:
        """The same as it is asked for now: with other commands, perhaps."""
        asked = replace(self, commands=planned.commands, order=planned.order)
        if asked.state in ("queued", "success"):
            asked = replace(asked, state="queued" if asked.left else "success")
        return asked

    def anew(self, commands: Collection[str]) -> Task:
        """The same, as if these commands had not run."""
        finished = tuple(name for name in self.finished if name not in commands)
        runs = {name: run for name, run in self.runs.items() if name not in commands}
        return replace(self, state="queued", finished=finished, runs=runs)

    def told_apart(self) -> Task:
        """The same in a folder whose name ends in a few digits of its values, which may be written alike."""
        ending = self._ending
        return replace(self, name=portable_name(self.name, LONGEST_NAME - len(ending)) + ending)

    def is_of(self, known: Task) -> bool:
        """Whether a folder is this task's where its files know ``known``: of other values it is another's."""
        return known.key == self.key or self.name.endswith(self._ending)

    @property
    def _ending(self) -> str:
        return f"-{sha256(self.key.encode()).hexdigest()[:6]}"

    def forget(self, folder: TaskFolder, refused: Exception) -> None:
        """Have the folder tell no more than what has finished, unless somebody runs the task."""
        if folder.param.exists():
            with locked(folder.lock, refused=refused):
                self.record(folder)

    def record(self, folder: TaskFolder) -> None:
        """Write down what ``param`` does not tell."""
        now = {self.command: self.state} | dict.fromkeys(self.finished, "finished")
        write_yaml(folder.stat, {name: now.get(name, "queued") for name in self.commands})
        told = {name: value for name, value in asdict(self).items() if name not in _OF_PARAM}
        write_json(folder.record, told)


def recorded(folder: TaskFolder) -> Task | None:
    """What a folder says of its task; None where it has not begun.

    Where the record tells no commands, as mlrunner has none and an earlier mmfw's did not, ``stat`` does.
    """
    param = {str(name): value for name, value in read_yaml(folder.param).items()}
    if not param:
        return None
    known = _read_record(folder)
    if "commands" not in known and (stat := read_yaml(folder.stat)):
        finished = [name for name, how in stat.items() if how == "finished"]
        state = "success" if len(finished) == len(stat) else "queued"
        state = "failed" if "failed" in stat.values() else state
        known = {"state": state, **known, "commands": map(str, stat), "finished": map(str, finished)}
    if known.get("state") == "running" and not is_locked(folder.lock):
        known |= {"state": "queued", "slot": None, "message": "what ran it has died; another run continues"}
    values = {name: value for name, value in param.items() if name not in (*RESERVED, SCRIPTS)}
    known |= {name: tuple(known.get(name, ())) for name in ("commands", "finished")}
    return Task(**{**known, "name": folder.path.name, "values": values})


def _read_record(folder: TaskFolder) -> dict[str, Any]:
    """What a task's record tells; nothing where there is none that can be read."""
    with suppress(OSError, ValueError):
        return known_fields(Task, read_json(folder.record))
    return {}


def require_known(folder: TaskFolder) -> None:
    """Raise DataError where a file is lost that tells what has run, which would run again."""
    files, stat = {folder.param: read_yaml(folder.param)}, read_yaml(folder.stat)
    if not stat or (folder.newest_run() is not None and "finished" not in stat.values()):
        files[folder.record] = _read_record(folder)  # which alone knows the run that is to be resumed
    lost = next((file for file, told in files.items() if not told), None)
    if lost is not None and any(folder.path.glob("log.*")):
        hint = "put it back, or delete the task's folder to have it run again from its beginning"
        raise DataError(f"{lost}: lost or damaged, and it tells what has run already", hint=hint)


def begun(sweep: SweepFolder) -> list[Task]:
    """The tasks of a sweep that have begun, in their order; those of a search come last."""
    folders = (path for path in sweep.path.iterdir() if path.is_dir()) if sweep.path.is_dir() else ()
    found = [task for path in folders if (task := recorded(TaskFolder(path))) is not None]
    return sorted(found, key=lambda task: (task.trial is not None, task.order, task.name))


def joined(planned: Sequence[Task], before: Sequence[Task]) -> list[Task]:
    """The tasks that are asked for, with what is known of those that have begun before.

    One that has not gets a folder that no other has, which may hold results of other values.
    """
    known = {task.key: task for task in before}
    taken = {task.name.casefold(): task.key for task in before}

    def now(task: Task) -> Task:
        if task.key in known:
            return known[task.key].asked_for(task)
        is_free = taken.setdefault(task.name.casefold(), task.key) == task.key
        return task if is_free else task.told_apart()

    return [now(task) for task in planned]
