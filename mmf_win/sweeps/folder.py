"""A sweep on disk.

::

    <output>/
      sweep.sqlite      the state of each task
      sweep.yaml        what was asked for last
      drivers/          a lock of each driver that runs
      <task>/           named by its parameters
        param           YAML: its values, names and commands
        stat            YAML: command → running, finished, failed, for people and mlrunner
        log.<command>.<time>   the output
        lock            held while it runs
        stop            asks its command to leave
        <run>/<time>/   what `mmfw train` leaves
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmf_win.files import replacing
from mmf_win.paths import Inside
from mmf_win.runs.folder import Run
from mmf_win.runs.lookup import all_runs


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep, and the files in it."""

    path: Path

    state = Inside("sweep.sqlite")
    """The table of tasks; a folder without it is no sweep."""
    specification = Inside("sweep.yaml")
    """What was asked for last."""
    drivers = Inside("drivers")
    """Locks of drivers."""
    study = Inside("optuna.sqlite")
    """What Optuna knows."""

    def task(self, name: str) -> TaskFolder:
        """The folder of a task."""
        return TaskFolder(self.path / name)


@dataclass(frozen=True)
class TaskFolder:
    """The folder of a task, and the files in it."""

    path: Path

    param = Inside("param")
    """What it was run with."""
    stat = Inside("stat")
    """How each command ended."""
    lock = Inside("lock")
    """Held while a command runs, also where the driver is gone."""
    stop = Inside("stop")
    """Asks the command that runs to leave."""

    def log(self, command: str, time: str) -> Path:
        """The output of a command."""
        return self.path / f"log.{command}.{time}"

    def newest_run(self) -> Run | None:
        """The newest run of mmfw's in it."""
        return next(iter(all_runs(self.path)), None)


def write_yaml(path: Path, value: Mapping[str, Any]) -> None:
    """Write a mapping, one key a line."""
    import yaml

    text = yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=1_000_000)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file; an empty one where there is none that can be read."""
    import yaml

    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return value if isinstance(value, dict) else {}
