"""A sweep on disk.

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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from mmf_win.console import did_you_mean, shell_line
from mmf_win.errors import InUseError, UsageError
from mmf_win.files import write_bytes
from mmf_win.locking import is_locked, locked
from mmf_win.paths import Inside
from mmf_win.runs.folder import PARAMETERS, RECORD, SPECIFICATION, SWEEPS, Run, discard, require_unused
from mmf_win.runs.lookup import all_runs, sweep_named, sweeps_in

_BY_LIBYAML = 4096  # characters; of more, something nested too deeply might crash it


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep, and the files in it; one without ``specification`` is no sweep."""

    path: Path
    specification = Inside(SPECIFICATION)
    drivers = Inside("drivers.lock")
    study = Inside("optuna.sqlite")
    study_lock = Inside("optuna.lock")
    tracking_key = Inside("tracking.key")
    tracking_lock = Inside("tracking.lock")

    def task(self, name: str) -> TaskFolder:
        """The folder of a task."""
        return TaskFolder(self.path / name)

    def key(self) -> str:
        """Hexadecimal digits that tell it from every other sweep for trackers, made when first asked for."""
        with locked(self.path / "tracking.key.lock", patience=10.0):  # its tasks ask at the same time
            if not self.tracking_key.exists():
                write_bytes(self.tracking_key, uuid4().hex.encode())
            return self.tracking_key.read_text(encoding="ascii")


@dataclass(frozen=True)
class TaskFolder:
    """The folder of a task, and the files in it; one without ``param`` has not begun."""

    path: Path
    param = Inside(PARAMETERS)
    stat = Inside("stat")
    record = Inside(RECORD)
    lock = Inside("lock")
    stop = Inside("stop")

    def newest_run(self) -> Run | None:
        """The newest run of mmfw's in it."""
        return next(iter(all_runs(self.path)), None)


def find_sweep(save_dir: Path, wanted: str | None) -> SweepFolder:
    """A sweep by its folder or its name in the save dir; without one, the newest. UsageError for none."""
    known = sweeps_in(save_dir)
    newest = max(known, key=lambda sweep: (sweep / SPECIFICATION).stat().st_mtime, default=None)
    found = newest if wanted is None else sweep_named(save_dir, wanted)
    if found is None:
        makes = shell_line("mmfw", "sweep", "run", "PRESET", "--seeds", "1-3", "--save-dir", save_dir)
        missing = f"sweep in {save_dir / SWEEPS}" if wanted is None else f"such sweep: {wanted}"
        meant = did_you_mean(wanted or "", [path.name for path in known])
        raise UsageError(f"there is no {missing}", hint=f"{meant}`{makes}` makes one")
    return SweepFolder(found)


def remove_sweep(sweep: SweepFolder) -> None:
    """Remove a sweep's folder. Raises InUseError or, where something else lies in it, UsageError."""
    own = (SPECIFICATION, sweep.drivers.name, "optuna.", "tracking.", "comparison_", "ensembles")
    with locked(sweep.drivers, refused=InUseError(f"{sweep.path}: mmfw sweep run still works on it")):
        pass
    for path in sweep.path.iterdir():
        task = TaskFolder(path)
        if not (path.name.startswith(own) or task.param.is_file() or task.lock.is_file()):
            raise UsageError(f"{path} is not the sweep's; move it out of the folder that is to be removed")
        if task.lock.is_file() and is_locked(task.lock):
            raise InUseError(f"{path} is running")
    for run in all_runs(sweep.path):
        require_unused(run)
    discard(sweep.path, SPECIFICATION)


def write_yaml(path: Path, value: Mapping[str, Any]) -> None:
    """Write a mapping, one key a line."""
    write_bytes(path, yaml_of(dict(value)).encode())


def yaml_of(*documents: Mapping[str, Any]) -> str:
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
        value = yaml.load(text, fast if len(text) < _BY_LIBYAML else yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
