"""Finds runs on disk: all of them, one that was named, or the newest that will do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from mmf_win.console import format_command, format_utc_time, suggestion_hint
from mmf_win.errors import DataError, RunNotFoundError
from mmf_win.paths import expand_home
from mmf_win.runs import presets
from mmf_win.runs.folder import SPECIFICATION, SWEEPS, Run, is_task

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_CLOCKS_DIFFER = 60.0  # seconds, of two machines


def all_runs(folder: Path) -> list[Run]:
    """Return every run in a save dir but those of sweeps, or in the folder of a sweep, the newest first."""
    return _newest_first(_folders(folder))


def _folders(folder: Path) -> Iterator[Run]:
    deep = ("*/*", "*/*/*") if (folder / SPECIFICATION).is_file() else ("*/*",)
    return (Run(path) for below in deep for path in folder.glob(below))


def _newest_first(folders: Iterable[Run]) -> list[Run]:
    """Return those folders that are runs by the time when each was asked for, the newest first."""
    dated = [(created, run) for run in folders if (created := run.created()) is not None]
    dated.sort(key=lambda each: (each[0][0], each[1].path.name, each[1].path.parent.name), reverse=True)
    return [run for _, run in dated]


def note_odd_time(run: Run) -> None:
    """Say so if the place of a run among others is not certain."""
    time_of, is_recorded = run.created() or (0.0, True)
    if not is_recorded:
        _log.warning("%s: no time of creation; ordered by when it was written", run.request_file)
    elif time_of > time.time() + _CLOCKS_DIFFER:
        _log.warning(
            "run %s was created in the future, %s; check the clock", run.id, format_utc_time(time_of)
        )


def sweeps_in(save_dir: Path) -> list[Path]:
    """The folders of the sweeps under ``save_dir``, by their names."""
    return sorted(file.parent for file in save_dir.glob(f"{SWEEPS}/*/{SPECIFICATION}"))


def with_sweeps(save_dir: Path) -> list[Run]:
    """Every run in a save dir, and then those of its sweeps."""
    return [run for folder in (save_dir, *sweeps_in(save_dir)) for run in all_runs(folder)]


def sweep_named(save_dir: Path, wanted: str) -> Path | None:
    """The sweep that its folder, its name or ``sweeps/NAME`` means; None where there is none."""
    places = (expand_home(wanted).absolute(), save_dir / wanted, save_dir / SWEEPS / wanted) if wanted else ()
    return next((place for place in places if (place / SPECIFICATION).is_file()), None)


def sweep_meant(save_dir: Path, wanted: str) -> Path | None:
    """Return the sweep that ``sweeps/NAME`` or its folder means; a bare name is that of a run or preset."""
    is_bare = Path(wanted).name == wanted != ".."
    return None if is_bare else sweep_named(save_dir, wanted)


def find_runs(save_dir: Path, wanted: str | None) -> list[Run]:
    """Return the runs of a sweep, as :func:`sweep_meant` finds it, else the run of :func:`find_run`.

    Raises NoRun where there is neither.
    """
    if sweep := sweep_meant(save_dir, wanted or ""):
        return all_runs(sweep)
    try:
        return [find_run(save_dir, wanted)]
    except RunNotFoundError as error:
        name = f"{SWEEPS}/{wanted}"
        hint = f"did you mean {name}?" if (save_dir / name / SPECIFICATION).is_file() else error.hint
        raise RunNotFoundError(str(error), hint=hint) from None


def named(save_dir: Path, wanted: str | None) -> Iterator[Run]:
    """The runs that an id, a name, a time, or a run's or task's folder may mean, the newest first."""
    for path in (expand_home(wanted).absolute(), save_dir / wanted) if wanted else ():
        own = Run(path.resolve() if ".." in path.parts else path)
        if _is_run(own.path):
            yield own
            return
        if is_task(own.path):
            yield from all_runs(own.path)
            return
    by_id = is_task(save_dir) or (save_dir / SPECIFICATION).is_file()  # else an id is the end of a path

    def is_meant(run: Run) -> bool:
        names = ("/".join(run.path.parts[-2:]), run.path.parent.name, run.path.name)
        return wanted in (None, *names) or (by_id and wanted == run.id)

    yield from _newest_first(filter(is_meant, _folders(save_dir)))


def find_run(save_dir: Path, wanted: str | None) -> Run:
    """A run by its id, its name (the newest of that name), its folder or its task's; without one, the newest.

    Raises NoRun where there is none.
    """
    return newest(save_dir, wanted, lambda run: run)


def newest(
    save_dir: Path, wanted: str | None, use: Callable[[Run], _T | None], preset: str | None = None
) -> _T:
    """What ``use`` makes of the newest of the runs that ``wanted`` may mean, or of the next that will do.

    A note names the newer ones that are passed over, and why.

    Raises NoRun where there is none, and the DataError of the newest where none will do.

    Args:
        use: raises DataError for a run that will not do; None for one that is not meant.
        preset: only runs of this preset.
    """
    passed: list[tuple[Run, DataError | OSError]] = []
    for run in named(save_dir, wanted):
        try:
            if preset is not None and run.request().preset != preset:
                continue
            found = use(run)
        except (DataError, OSError) as error:
            passed.append((run, error))
            continue
        if found is None:
            continue
        for other, why in passed:
            reason = why if isinstance(why, OSError) else why.message_without(f"run {other.id}")
            _log.warning("skipping run %s: %s", other.id, reason)
        if passed:
            _log.warning("taking run %s", run.id)
        note_odd_time(run)
        return found
    if passed:
        raise passed[0][1]
    of = f" of preset {preset}" if preset else ""
    missing = f"no run{of} yet" if wanted is None else f"no run{of} named {wanted}"
    raise RunNotFoundError(f"{save_dir}: there is {missing}", hint=_instead(save_dir, wanted))


def _instead(save_dir: Path, wanted: str | None) -> str:
    """What to do where there is no such run."""
    if wanted and sweep_named(save_dir, wanted):
        lists = format_command("mmfw", "runs", "--sweep", wanted, "--save-dir", save_dir)
        return f"{wanted} is a sweep; `{lists}` lists its runs"
    if wanted is None or wanted in presets.names():
        return f"`{format_command('mmfw', 'train', wanted or 'PRESET', '--save-dir', save_dir)}` makes one"
    if wanted.endswith((".ckpt", ".pth", ".pt")):
        return f"`{format_command('mmfw', 'predict', '--checkpoint', wanted)}` predicts with a checkpoint"
    names = [*(run.path.parent.name for run in all_runs(save_dir)), *presets.names()]
    names += [f"{SWEEPS}/{path.name}" for path in sweeps_in(save_dir)]
    lists = format_command("mmfw", "runs", "--save-dir", save_dir)
    return f"{suggestion_hint(wanted, names)}`{lists}` lists the runs"


def owner(file: Path) -> Run | None:
    """The run whose folder a file lies in."""
    return next((Run(parent) for parent in file.parents if _is_run(parent)), None)


def _is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, and not of one of its attempts, which have requests, too."""
    of_attempt = folder.parent.name == "attempts" and Run(folder.parents[1]).request_file.is_file()
    return Run(folder).request_file.is_file() and not of_attempt
