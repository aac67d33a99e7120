"""A sweep on disk, and its tasks: each one combination of values, the commands to run with it, how far it is.

::

    <output>/
      sweep.yaml        what was asked for last; what of it has not begun has no folder
      optuna.sqlite     what Optuna knows of a search
      tracking.key      tells trackers which sweep it is; tracking.*lock is held while it is made there
      drivers.lock      shared by the drivers that work on it, so that nobody removes it between two tasks
      optuna.lock       held while a driver makes the study, or makes or ends a trial, which Optuna mixes up
      <task>/           named by its parameters
        param           YAML: its values and names
        stat            YAML, for mlrunner: command → queued, running, finished, failed
        task.json       its commands, and how far it is
        log.<command>.<time>   the output
        lock            held by whoever runs it, until all that was started for it has ended
        stop            asks the command that runs to leave
        <run>/<time>/   what `mmfw train` leaves

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
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from mmf_win.console import format_command, suggestion_hint
from mmf_win.errors import DataError, InUseError, UsageError
from mmf_win.files import write_bytes, write_json
from mmf_win.locking import file_lock, is_locked
from mmf_win.paths import ChildPath, portable_name
from mmf_win.records import optional_fields_of, read_record
from mmf_win.runs.folder import (
    PARAMETERS_FILE,
    SPECIFICATION_FILE,
    SWEEPS_DIR,
    TASK_RECORD_FILE,
    Run,
    discard_folder,
    require_unused,
)
from mmf_win.runs.lookup import find_sweep_folder, list_runs, list_sweeps
from mmf_win.sweeps.specification import (
    LEGACY_SCRIPTS_KEY,
    RESERVED_PLACEHOLDERS,
    Specification,
    Values,
    parse_specification,
    read_text,
)

TaskState = Literal["queued", "running", "success", "failed", "pruned"]

#: Bytes of a folder's name: with a run's own files below it, a path on Windows stays below its 260.
MAX_NAME_BYTES = 80

_PARAM_FIELDS = ("name", "values")  # and its folder; what its record need not tell
_MAX_LIBYAML_CHARS = 4096  # characters; of more, something nested too deeply might crash it


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep, and the files in it; one without ``specification`` is no sweep."""

    path: Path
    specification = ChildPath(SPECIFICATION_FILE)
    drivers_lock = ChildPath("drivers.lock")
    study = ChildPath("optuna.sqlite")
    study_lock = ChildPath("optuna.lock")
    tracking_key = ChildPath("tracking.key")
    tracking_lock = ChildPath("tracking.lock")

    def task_folder(self, name: str) -> TaskFolder:
        """The folder of a task."""
        return TaskFolder(self.path / name)

    def ensure_tracking_key(self) -> str:
        """Hexadecimal digits that tell it from every other sweep for trackers, made when first asked for."""
        with file_lock(self.path / "tracking.key.lock", timeout=10.0):  # its tasks ask at the same time
            if not self.tracking_key.exists():
                write_bytes(self.tracking_key, uuid4().hex.encode())
            return self.tracking_key.read_text(encoding="ascii")


@dataclass(frozen=True)
class TaskFolder:
    """The folder of a task, and the files in it; one without ``param`` has not begun."""

    path: Path
    param = ChildPath(PARAMETERS_FILE)
    stat = ChildPath("stat")
    record_file = ChildPath(TASK_RECORD_FILE)
    lock = ChildPath("lock")
    stop_file = ChildPath("stop")

    def newest_run(self) -> Run | None:
        """The newest run of mmfw's in it."""
        return next(iter(list_runs(self.path)), None)


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
    state: TaskState = "queued"
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
    def remaining_commands(self) -> list[str]:
        """The commands that have not ended well."""
        return [name for name in self.commands if name not in self.finished]

    def with_planned_commands(self, planned: Task) -> Task:
        """The same as it is asked for now: with other commands, perhaps."""
        asked = replace(self, commands=planned.commands, order=planned.order)
        if asked.state in ("queued", "success"):
            asked = replace(asked, state="queued" if asked.remaining_commands else "success")
        return asked

    def with_commands_reset(self, commands: Collection[str]) -> Task:
        """The same, as if these commands had not run."""
        finished = tuple(name for name in self.finished if name not in commands)
        runs = {name: run for name, run in self.runs.items() if name not in commands}
        return replace(self, state="queued", finished=finished, runs=runs)

    def with_unique_name(self) -> Task:
        """The same in a folder whose name ends in a few digits of its values, which may be written alike."""
        ending = self._name_suffix
        return replace(self, name=portable_name(self.name, MAX_NAME_BYTES - len(ending)) + ending)

    def matches(self, recorded_task: Task) -> bool:
        """Whether a folder is this task's where its files know ``known``: of other values it is another's."""
        return recorded_task.key == self.key or self.name.endswith(self._name_suffix)

    @property
    def _name_suffix(self) -> str:
        return f"-{sha256(self.key.encode()).hexdigest()[:6]}"

    def reset_record(self, folder: TaskFolder, in_use_error: Exception) -> None:
        """Have the folder tell no more than what has finished, unless somebody runs the task."""
        if folder.param.exists():
            with file_lock(folder.lock, in_use_error=in_use_error):
                self.save(folder)

    def save(self, folder: TaskFolder) -> None:
        """Write down what ``param`` does not tell."""
        now = {self.command: self.state} | dict.fromkeys(self.finished, "finished")
        write_yaml(folder.stat, {name: now.get(name, "queued") for name in self.commands})
        told = {name: value for name, value in asdict(self).items() if name not in _PARAM_FIELDS}
        write_json(folder.record_file, told)


def load_specification(sweep: SweepFolder) -> Specification | None:
    """What a sweep was asked for last; None where nothing says so. Raises UsageError for an invalid file."""
    path = sweep.specification
    return parse_specification(read_text(path), path) if path.is_file() else None


def find_sweep(save_dir: Path, name_or_folder: str | None) -> SweepFolder:
    """A sweep by its folder or its name in the save dir; without one, the newest. UsageError for none."""
    known = list_sweeps(save_dir)
    newest = max(known, key=lambda sweep: (sweep / SPECIFICATION_FILE).stat().st_mtime, default=None)
    if found := newest if name_or_folder is None else find_sweep_folder(save_dir, name_or_folder):
        return SweepFolder(found)
    makes = format_command("mmfw", "sweep", "run", "PRESET", "--seeds", "1-3", "--save-dir", save_dir)
    missing = (
        f"sweep in {save_dir / SWEEPS_DIR}" if name_or_folder is None else f"such sweep: {name_or_folder}"
    )
    meant = suggestion_hint(name_or_folder or "", [path.name for path in known])
    raise UsageError(f"there is no {missing}", hint=f"{meant}`{makes}` makes one")


def remove_sweep(sweep: SweepFolder) -> None:
    """Remove a sweep's folder. Raises InUseError or, where something else lies in it, UsageError."""
    own = (SPECIFICATION_FILE, sweep.drivers_lock.name, "optuna.", "tracking.", "comparison_", "ensembles")
    with file_lock(
        sweep.drivers_lock, in_use_error=InUseError(f"{sweep.path}: mmfw sweep run still works on it")
    ):
        pass
    for path in sweep.path.iterdir():
        task = TaskFolder(path)
        if not (path.name.startswith(own) or task.param.is_file() or task.lock.is_file()):
            raise UsageError(f"{path} is not the sweep's; move it out of the folder that is to be removed")
        if task.lock.is_file() and is_locked(task.lock):
            raise InUseError(f"{path} is running")
    for run in list_runs(sweep.path):
        require_unused(run)
    discard_folder(sweep.path, SPECIFICATION_FILE)


def write_yaml(path: Path, value: Mapping[str, Any]) -> None:
    """Write a mapping, one key a line."""
    write_bytes(path, dump_yaml(dict(value)).encode())


def dump_yaml(*documents: Mapping[str, Any]) -> str:
    """Mappings as documents of YAML, one key a line; parsers find the same values in them."""
    import yaml

    text = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=1_000_000)
    if "\x85" in text:  # to YAML the end of a line, which it would read as a blank
        text = yaml.safe_dump_all(documents, sort_keys=False, width=1_000_000)
    return text


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file; an empty one where there is none that can be read."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        value = yaml.load(text, fast if len(text) < _MAX_LIBYAML_CHARS else yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def load_task(folder: TaskFolder) -> Task | None:
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
    values = {
        name: value
        for name, value in param.items()
        if name not in (*RESERVED_PLACEHOLDERS, LEGACY_SCRIPTS_KEY)
    }
    known |= {name: tuple(known.get(name, ())) for name in ("commands", "finished")}
    return Task(**{**known, "name": folder.path.name, "values": values})


def _read_record(folder: TaskFolder) -> dict[str, Any]:
    """What a task's record tells; nothing where there is none that can be read."""
    with suppress(OSError, ValueError):
        return read_record(folder.record_file, optional_fields_of(Task))
    return {}


def require_intact_records(folder: TaskFolder) -> None:
    """Raise DataError where a file is lost that tells what has run, which would run again."""
    files, stat, why = {folder.param: read_yaml(folder.param)}, read_yaml(folder.stat), ""
    if not stat or (folder.newest_run() is not None and "finished" not in stat.values()):
        try:  # it alone knows the run that is to be resumed
            files[folder.record_file] = read_record(folder.record_file, optional_fields_of(Task))
        except (OSError, ValueError) as error:
            files[folder.record_file], why = {}, f" ({error})" if isinstance(error, ValueError) else ""
    lost = next((file for file, told in files.items() if not told), None)
    if lost is not None and any(folder.path.glob("log.*")):
        hint = "put it back, or delete the task's folder to have it run again from its beginning"
        why = why if lost == folder.record_file else ""
        raise DataError(f"{lost}: lost or damaged{why}, and it tells what has run already", hint=hint)


def load_started_tasks(sweep: SweepFolder) -> list[Task]:
    """The tasks of a sweep that have begun, in their order; those of a search come last."""
    folders = (path for path in sweep.path.iterdir() if path.is_dir()) if sweep.path.is_dir() else ()
    found = [task for path in folders if (task := load_task(TaskFolder(path))) is not None]
    return sorted(found, key=lambda task: (task.trial is not None, task.order, task.name))


def merge_tasks(planned: Sequence[Task], started: Sequence[Task]) -> list[Task]:
    """The tasks that are asked for, with what is known of those that have begun before.

    One that has not gets a folder that no other has, which may hold results of other values.
    """
    known = {task.key: task for task in started}
    taken = {task.name.casefold(): task.key for task in started}

    def merge_task(task: Task) -> Task:
        if task.key in known:
            return known[task.key].with_planned_commands(task)
        is_free = taken.setdefault(task.name.casefold(), task.key) == task.key
        return task if is_free else task.with_unique_name()

    return [merge_task(task) for task in planned]
