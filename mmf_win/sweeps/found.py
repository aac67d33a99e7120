"""Finds sweeps on disk, and says what their tasks took and how far they are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mmf_win.console import shell_line
from mmf_win.errors import DataError, UsageError
from mmf_win.protocol import Event, read_events
from mmf_win.runs.folder import Run
from mmf_win.runs.history import size_of, summaries, val_auroc
from mmf_win.sweeps.folder import SweepFolder, TaskFolder
from mmf_win.sweeps.planning import all_tasks
from mmf_win.sweeps.table import differing_parameters
from mmf_win.sweeps.task import Task

_SAMPLE = 20  # tasks whose files are counted
SWEEPS = "sweeps"
"""Where sweeps lie in the save dir."""


class Cost(NamedTuple):
    """What a task takes, by so many earlier ``tasks``: the means of their time and of their bytes on disk."""

    tasks: int
    seconds: float
    size: float


@dataclass(frozen=True)
class Position:
    """How far a task's newest training is, with the last loss, the best AUROC and the seconds that are left.

    What is not known is None.
    """

    update: int | None = None
    max_updates: int | None = None
    loss: float | None = None
    auroc: float | None = None
    left: float | None = None


def find_sweep(save_dir: Path, wanted: str | None) -> SweepFolder:
    """A sweep by its folder or its name in the save dir; without one, the newest there.

    Raises:
        UsageError: there is none.
    """
    places = [Path(wanted).expanduser(), save_dir / SWEEPS / wanted] if wanted else []
    every = map(SweepFolder, places or sorted((save_dir / SWEEPS).glob("*")))
    found = [sweep for sweep in every if sweep.specification.is_file()]
    if not found:
        nothing = f"there is no sweep in {save_dir / SWEEPS}"
        makes = shell_line("mmfw", "sweep", "run", "PRESET", "--seeds", "1-3", "--save-dir", save_dir)
        missing = f"{wanted}: there is no such sweep" if wanted else nothing
        raise UsageError(missing, hint=f"`{makes}` makes one")
    return found[0] if wanted else max(found, key=lambda sweep: sweep.specification.stat().st_mtime)


def trained(sweep: SweepFolder) -> dict[Run, dict[str, Any]]:
    """The newest run of each task that ended well or was pruned, with the parameters that differ.

    Raises:
        UsageError: the sweep's specification is invalid.
    """
    tasks = [task for task in all_tasks(sweep) if task.state in ("success", "pruned")]
    differing = differing_parameters(tasks)
    found = [(sweep.task(task.name).newest_run(), task) for task in tasks]
    return {
        run: {name: task.values.get(name) for name in differing} for run, task in found if run is not None
    }


def position(folder: TaskFolder) -> Position:
    """How far a task is."""
    try:
        run = folder.newest_run()
        events = [] if run is None else read_events(run.events)
    except (DataError, OSError):
        return Position()
    scores = [score for event in events if (score := val_auroc(event)) is not None]
    last: Event = next((event for event in reversed(events) if event["kind"] == "train"), {})
    update, total, speed = last.get("update"), last.get("max_updates"), last.get("updates_per_s")
    left = (total - update) / speed if total and speed else None
    return Position(update, total, last.get("loss"), max(scores, default=None), left)


def cost(sweep: SweepFolder, tasks: Sequence[Task], preset: str | None, save_dir: Path) -> Cost | None:
    """What one more task will take: by those of the sweep that ended well, else by runs of the preset.

    None where there is neither.
    """
    done = [task for task in tasks if task.state == "success"]
    if done:
        sizes = [size_of(Run(sweep.task(task.name).path)) for task in done[:_SAMPLE]]
        return Cost(len(done), statistics.mean(task.seconds for task in done), statistics.mean(sizes))
    runs = summaries(save_dir, preset=preset, state="done") if preset else []
    seconds, sizes = [run.seconds for run in runs], [run.size for run in runs]
    return Cost(len(runs), statistics.mean(seconds), statistics.mean(sizes)) if runs else None
