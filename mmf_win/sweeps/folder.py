"""Folder of a sweep and its tasks: combinations of values and the commands to run with them.

::

    <output>/
      sweep.yaml        the specification; tasks that have not started have no folder
      optuna.sqlite     Optuna's study of a search
      tracking.key      identifies the sweep to trackers; tracking.*lock is held while it is created there
      drivers.lock      shared by the drivers of the sweep; prevents its removal between two tasks
      optuna.lock       held while a driver creates the study or creates or ends a trial, as Optuna's own
                        operations are not safe against each other
      <task>/           named after its parameters
        param           YAML: values and names of the task
        stat            YAML, for mlrunner: command → queued, running, finished, failed
        task.json       commands of the task and their progress
        log.<command>.<time>   output
        lock            held by the driver that runs the task and by all processes started for it
        stop            asks the running command to exit
        <run>/<time>/   run of `mmfw train`

::

    queued ──claimed──▶ running ──▶ success | failed | pruned
       ▲                   │
       └── stopped, or all its processes died

The folder of a task holds its state once it has started; other tasks follow from the specification. A driver
and all processes that it starts for a task hold the task's lock, so no other driver can run the task before
they have all ended.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from mmf_win.records import from_stored, optional_fields_of, read_record, stored_as, to_stored
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

#: Maximum bytes of a folder name; keeps the paths of a run's files below the 260 characters of Windows.
MAX_NAME_BYTES = 80

_PARAM_FIELDS = ("name", "values")  # stored in `param` and the folder name, not in the record
_MAX_LIBYAML_CHARS = 4096  # deep nesting in longer texts might crash libyaml


@dataclass(frozen=True)
class SweepFolder:
    """Folder of a sweep and its files; without ``specification`` it is not a sweep."""

    path: Path
    specification = ChildPath(SPECIFICATION_FILE)
    drivers_lock = ChildPath("drivers.lock")
    study = ChildPath("optuna.sqlite")
    study_lock = ChildPath("optuna.lock")
    tracking_key = ChildPath("tracking.key")
    tracking_lock = ChildPath("tracking.lock")

    def task_folder(self, name: str) -> TaskFolder:
        """Return the folder of a task."""
        return TaskFolder(self.path / name)

    def ensure_tracking_key(self) -> str:
        """Return the hexadecimal key that identifies the sweep to trackers; created on first use."""
        with file_lock(self.path / "tracking.key.lock", timeout=10.0):  # its tasks may ask at the same time
            if not self.tracking_key.exists():
                write_bytes(self.tracking_key, uuid4().hex.encode())
            return self.tracking_key.read_text(encoding="ascii")


@dataclass(frozen=True)
class TaskFolder:
    """Folder of a task and its files; without ``param`` the task has not started."""

    path: Path
    param = ChildPath(PARAMETERS_FILE)
    stat = ChildPath("stat")
    record_file = ChildPath(TASK_RECORD_FILE)
    lock = ChildPath("lock")
    stop_file = ChildPath("stop")

    def newest_run(self) -> Run | None:
        """Return the newest mmfw run in the folder, or ``None``."""
        return next(iter(list_runs(self.path)), None)


@dataclass(frozen=True)
class Task:
    """Combination of values and its progress.

    Attributes:
        name: Name of the task's folder.
        values: Values for its commands, with aliases replaced and defaults added.
        commands: Names of the templates to run, in order.
        order: Position in the specification, or in the search.
        trial: Optuna's trial number; ``None`` for values from the specification.
        state: State of the task as a whole.
        command: Name of the command that runs or failed.
        message: Reason for the failure.
        slot: Resource that runs the task.
        start_count: Number of times it was started.
        seconds: Total run time.
        finished_commands: Commands that succeeded; they are not run again.
        runs: Per command, its command line when it was started (``script``) and its mmfw run (``run``). A
            command with the same command line resumes that run.
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
    start_count: int = field(default=0, metadata=stored_as("starts"))
    seconds: float = 0.0
    finished_commands: tuple[str, ...] = field(default=(), metadata=stored_as("finished"))
    runs: dict[str, dict[str, str]] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """Identifier of the values, independent of the order of the parameters."""
        return json.dumps(self.values, sort_keys=True, default=str)

    @property
    def remaining_commands(self) -> list[str]:
        """Commands that have not succeeded."""
        return [name for name in self.commands if name not in self.finished_commands]

    def with_planned_commands(self, planned: Task) -> Task:
        """Return a copy with the commands and the order of the planned task."""
        task = replace(self, commands=planned.commands, order=planned.order)
        if task.state in ("queued", "success"):
            task = replace(task, state="queued" if task.remaining_commands else "success")
        return task

    def with_commands_reset(self, commands: Collection[str]) -> Task:
        """Return a copy in which these commands have not run."""
        finished = tuple(name for name in self.finished_commands if name not in commands)
        runs = {name: run for name, run in self.runs.items() if name not in commands}
        return replace(self, state="queued", finished_commands=finished, runs=runs)

    def with_unique_name(self) -> Task:
        """Return a copy whose name ends in a hash of its values, so that the folder name is unique."""
        suffix = self._name_suffix
        return replace(self, name=portable_name(self.name, MAX_NAME_BYTES - len(suffix)) + suffix)

    def matches(self, recorded_task: Task) -> bool:
        """Return whether a folder with this recorded task belongs to this task and not to other values."""
        return recorded_task.key == self.key or self.name.endswith(self._name_suffix)

    @property
    def _name_suffix(self) -> str:
        return f"-{sha256(self.key.encode()).hexdigest()[:6]}"

    def reset_record(self, folder: TaskFolder, in_use_error: Exception) -> None:
        """Overwrite the record in the folder with this task.

        Args:
            folder: Folder of the task; nothing is written if the task has not started.
            in_use_error: Error to raise if the task is running.
        """
        if folder.param.exists():
            with file_lock(folder.lock, in_use_error=in_use_error):
                self.save(folder)

    def save(self, folder: TaskFolder) -> None:
        """Write ``stat`` and the record: everything except the contents of ``param``."""
        states = {self.command: self.state} | dict.fromkeys(self.finished_commands, "finished")
        write_yaml(folder.stat, {name: states.get(name, "queued") for name in self.commands})
        record = {name: value for name, value in to_stored(self).items() if name not in _PARAM_FIELDS}
        write_json(folder.record_file, record)


def load_specification(sweep: SweepFolder) -> Specification | None:
    """Load the specification of a sweep.

    Returns:
        The specification, or ``None`` if the sweep has none.

    Raises:
        UsageError: The file is invalid.
    """
    path = sweep.specification
    return parse_specification(read_text(path), path) if path.is_file() else None


def find_sweep(save_dir: Path, name_or_folder: str | None) -> SweepFolder:
    """Find a sweep in the save dir.

    Args:
        save_dir: Folder of runs and sweeps.
        name_or_folder: Name or folder of the sweep; ``None`` for the newest one.

    Returns:
        The folder of the sweep.

    Raises:
        UsageError: No sweep was found.
    """
    sweeps = list_sweeps(save_dir)
    newest = max(sweeps, key=lambda sweep: (sweep / SPECIFICATION_FILE).stat().st_mtime, default=None)
    if folder := newest if name_or_folder is None else find_sweep_folder(save_dir, name_or_folder):
        return SweepFolder(folder)
    command = format_command("mmfw", "sweep", "run", "PRESET", "--seeds", "1-3", "--save-dir", save_dir)
    message = f"no sweep in {save_dir / SWEEPS_DIR}" if name_or_folder is None else f"no sweep named {name_or_folder}"
    suggestion = suggestion_hint(name_or_folder or "", [path.name for path in sweeps])
    raise UsageError(message, hint=f"{suggestion}run `{command}` to create one")


def remove_sweep(sweep: SweepFolder) -> None:
    """Remove the folder of a sweep.

    Raises:
        InUseError: A driver, a task or a run of the sweep is active.
        UsageError: The folder contains other files.
    """
    names = (SPECIFICATION_FILE, sweep.drivers_lock.name, "optuna.", "tracking.", "comparison_", "ensembles")
    with file_lock(sweep.drivers_lock, in_use_error=InUseError(f"{sweep.path} is in use by `mmfw sweep run`")):
        pass
    for path in sweep.path.iterdir():
        task = TaskFolder(path)
        if not (path.name.startswith(names) or task.param.is_file() or task.lock.is_file()):
            raise UsageError(f"{path} does not belong to the sweep", hint="move it out of the folder")
        if task.lock.is_file() and is_locked(task.lock):
            raise InUseError(f"{path}: the task is running")
    for run in list_runs(sweep.path):
        require_unused(run)
    discard_folder(sweep.path, SPECIFICATION_FILE)


def write_yaml(path: Path, value: Mapping[str, Any]) -> None:
    """Write a mapping, one key per line."""
    write_bytes(path, dump_yaml(dict(value)).encode())


def dump_yaml(*documents: Mapping[str, Any]) -> str:
    """Return YAML documents of mappings, one key per line; every parser reads the same values from them."""
    import yaml

    text = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=1_000_000)
    if "\x85" in text:  # a line break in YAML, which would be read back as a space
        text = yaml.safe_dump_all(documents, sort_keys=False, width=1_000_000)
    return text


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a file, or an empty one if the file cannot be read."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        fast_loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        value = yaml.load(text, fast_loader if len(text) < _MAX_LIBYAML_CHARS else yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def load_task(folder: TaskFolder) -> Task | None:
    """Load the task of a folder.

    If the record has no commands, as with mlrunner and earlier versions of mmfw, ``stat`` provides them.

    Returns:
        The task, or ``None`` if it has not started.
    """
    param = {str(name): value for name, value in read_yaml(folder.param).items()}
    if not param:
        return None
    record = _read_record(folder)
    if "commands" not in record and (stat := read_yaml(folder.stat)):
        finished = [name for name, command_state in stat.items() if command_state == "finished"]
        state = "success" if len(finished) == len(stat) else "queued"
        state = "failed" if "failed" in stat.values() else state
        record = {"state": state, **record, "commands": map(str, stat), "finished": map(str, finished)}
    if record.get("state") == "running" and not is_locked(folder.lock):
        message = "the driver of the sweep died; run the sweep again to continue"
        record |= {"state": "queued", "slot": None, "message": message}
    values = {name: value for name, value in param.items() if name not in (*RESERVED_PLACEHOLDERS, LEGACY_SCRIPTS_KEY)}
    record |= {name: tuple(record.get(name, ())) for name in ("commands", "finished")}
    return from_stored(record, Task, name=folder.path.name, values=values)


def _read_record(folder: TaskFolder) -> dict[str, Any]:
    """Return the fields of a task's record, or nothing if it cannot be read."""
    with suppress(OSError, ValueError):
        return read_record(folder.record_file, optional_fields_of(Task))
    return {}


def require_intact_records(folder: TaskFolder) -> None:
    """Verify the files that record which commands have run; otherwise commands would run again.

    Raises:
        DataError: A file is missing or damaged.
    """
    files, stat, reason = {folder.param: read_yaml(folder.param)}, read_yaml(folder.stat), ""
    if not stat or (folder.newest_run() is not None and "finished" not in stat.values()):
        try:  # only the record names the run to resume
            files[folder.record_file] = read_record(folder.record_file, optional_fields_of(Task))
        except (OSError, ValueError) as error:
            files[folder.record_file], reason = {}, f" ({error})" if isinstance(error, ValueError) else ""
    damaged = next((file for file, content in files.items() if not content), None)
    if damaged is not None and any(folder.path.glob("log.*")):
        hint = "restore the file, or delete the task's folder to run the task again from the beginning"
        reason = reason if damaged == folder.record_file else ""
        message = f"{damaged} is missing or damaged{reason}; cannot tell which commands already ran"
        raise DataError(message, hint=hint)


def load_started_tasks(sweep: SweepFolder) -> list[Task]:
    """Return the started tasks of a sweep in their order; those of a search come last."""
    folders = (path for path in sweep.path.iterdir() if path.is_dir()) if sweep.path.is_dir() else ()
    tasks = [task for path in folders if (task := load_task(TaskFolder(path))) is not None]
    return sorted(tasks, key=lambda task: (task.trial is not None, task.order, task.name))


def merge_tasks(planned: Sequence[Task], started: Sequence[Task]) -> list[Task]:
    """Return the planned tasks with the progress of those that have started.

    A task that has not started gets a folder name that no other task has, as that folder may hold results of
    other values.

    Args:
        planned: Tasks that the specification asks for.
        started: Tasks that have a folder.

    Returns:
        One task per planned task, in the same order.
    """
    started_by_key = {task.key: task for task in started}
    keys_by_name = {task.name.casefold(): task.key for task in started}

    def merge_task(task: Task) -> Task:
        if task.key in started_by_key:
            return started_by_key[task.key].with_planned_commands(task)
        is_free = keys_by_name.setdefault(task.name.casefold(), task.key) == task.key
        return task if is_free else task.with_unique_name()

    return [merge_task(task) for task in planned]
