"""Finding runs and sweeps on disk."""

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
from mmf_win.runs.folder import SPECIFICATION_FILE, SWEEPS_DIR, Run, is_task_folder

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_MAX_CLOCK_SKEW_SECONDS = 60.0  # between two machines


def list_runs(folder: Path) -> list[Run]:
    """Return the runs in a save dir (without those of sweeps) or in the folder of a sweep, newest first."""
    return _sort_newest_first(_iter_candidate_runs(folder))


def _iter_candidate_runs(folder: Path) -> Iterator[Run]:
    patterns = ("*/*", "*/*/*") if (folder / SPECIFICATION_FILE).is_file() else ("*/*",)
    return (Run(path) for pattern in patterns for path in folder.glob(pattern))


def _sort_newest_first(runs: Iterable[Run]) -> list[Run]:
    """Return the folders that are runs, sorted by creation time, newest first."""
    dated = [(created, run) for run in runs if (created := run.creation_time()) is not None]
    dated.sort(key=lambda entry: (entry[0][0], entry[1].path.name, entry[1].path.parent.name), reverse=True)
    return [run for _, run in dated]


def warn_if_time_uncertain(run: Run) -> None:
    """Log a warning if the run's position in the order of runs is uncertain."""
    created, is_recorded = run.creation_time() or (0.0, True)
    if not is_recorded:
        _log.warning("%s: no creation time, using its modification time", run.request_file)
    elif created > time.time() + _MAX_CLOCK_SKEW_SECONDS:
        _log.warning("run %s was created in the future (%s); check the system clock", run.id, format_utc_time(created))


def list_sweeps(save_dir: Path) -> list[Path]:
    """Return the folders of the sweeps under ``save_dir``, sorted by name."""
    return sorted(file.parent for file in save_dir.glob(f"{SWEEPS_DIR}/*/{SPECIFICATION_FILE}"))


def list_runs_with_sweeps(save_dir: Path) -> list[Run]:
    """Return the runs of a save dir, followed by the runs of its sweeps."""
    return [run for folder in (save_dir, *list_sweeps(save_dir)) for run in list_runs(folder)]


def find_sweep_folder(save_dir: Path, sweep_spec: str) -> Path | None:
    """Return the folder of a sweep given by folder, name or ``sweeps/NAME``, or ``None`` if there is none."""
    if not sweep_spec:
        return None
    candidates = expand_home(sweep_spec).absolute(), save_dir / sweep_spec, save_dir / SWEEPS_DIR / sweep_spec
    return next((candidate for candidate in candidates if (candidate / SPECIFICATION_FILE).is_file()), None)


def find_explicit_sweep_folder(save_dir: Path, sweep_spec: str) -> Path | None:
    """Return the sweep given by ``sweeps/NAME`` or folder; ``None`` for a bare name (a run or preset)."""
    is_bare = Path(sweep_spec).name == sweep_spec != ".."
    return None if is_bare else find_sweep_folder(save_dir, sweep_spec)


def find_runs(save_dir: Path, run_spec: str | None) -> list[Run]:
    """Return all runs of a sweep (see :func:`find_explicit_sweep_folder`), or the run of :func:`find_run`.

    Args:
        save_dir: Save dir.
        run_spec: Sweep or run; ``None`` for the newest run.

    Returns:
        The runs, newest first.

    Raises:
        RunNotFoundError: Neither a sweep nor a run matches.
    """
    if sweep := find_explicit_sweep_folder(save_dir, run_spec or ""):
        return list_runs(sweep)
    try:
        return [find_run(save_dir, run_spec)]
    except RunNotFoundError as error:
        name = f"{SWEEPS_DIR}/{run_spec}"
        hint = f"did you mean {name}?" if (save_dir / name / SPECIFICATION_FILE).is_file() else error.hint
        raise RunNotFoundError(str(error), hint=hint) from None


def iter_matching_runs(save_dir: Path, run_spec: str | None) -> Iterator[Run]:
    """Yield the runs that match an ID, a name, a time, or the folder of a run or task, newest first.

    Args:
        save_dir: Save dir or folder of a sweep.
        run_spec: ID, name, time or folder; ``None`` for all runs.

    Yields:
        The matching runs.
    """
    for path in (expand_home(run_spec).absolute(), save_dir / run_spec) if run_spec else ():
        candidate = Run(path.resolve() if ".." in path.parts else path)
        if _is_run_folder(candidate.path):
            yield candidate
            return
        if is_task_folder(candidate.path):
            yield from list_runs(candidate.path)
            return
    # In a sweep, an ID may be that of a task; elsewhere it consists of the last parts of the path.
    accepts_id = is_task_folder(save_dir) or (save_dir / SPECIFICATION_FILE).is_file()

    def is_match(run: Run) -> bool:
        names = ("/".join(run.path.parts[-2:]), run.path.parent.name, run.path.name)
        return run_spec in (None, *names) or (accepts_id and run_spec == run.id)

    yield from _sort_newest_first(filter(is_match, _iter_candidate_runs(save_dir)))


def find_run(save_dir: Path, run_spec: str | None) -> Run:
    """Return the newest run that matches an ID, name or folder.

    Args:
        save_dir: Save dir or folder of a sweep.
        run_spec: ID, name, time, or folder of a run or task; ``None`` for any run.

    Raises:
        RunNotFoundError: No run matches.
    """
    return find_first_usable_run(save_dir, run_spec, lambda run: run)


def find_first_usable_run(
    save_dir: Path, run_spec: str | None, load: Callable[[Run], _T | None], preset: str | None = None
) -> _T:
    """Return ``load(run)`` for the newest matching run that is usable.

    Logs a warning for each newer run that was skipped.

    Args:
        save_dir: Save dir or folder of a sweep.
        run_spec: ID, name, time or folder of a run; ``None`` for any run.
        load: Returns ``None`` to ignore a run; raises ``DataError`` if the run is unusable.
        preset: Consider only runs of this preset.

    Returns:
        The result of ``load``.

    Raises:
        RunNotFoundError: No run matches.
        DataError: No matching run is usable; this is the error of the newest one.
    """
    skipped: list[tuple[Run, DataError | OSError]] = []
    for run in iter_matching_runs(save_dir, run_spec):
        try:
            if preset is not None and run.request().preset != preset:
                continue
            result = load(run)
        except (DataError, OSError) as error:
            skipped.append((run, error))
            continue
        if result is None:
            continue
        for skipped_run, problem in skipped:
            reason = problem if isinstance(problem, OSError) else problem.message_without(f"run {skipped_run.id}")
            _log.warning("skipping run %s: %s", skipped_run.id, reason)
        if skipped:
            _log.warning("using run %s", run.id)
        warn_if_time_uncertain(run)
        return result
    if skipped:
        raise skipped[0][1]
    of_preset = f" of preset {preset}" if preset else ""
    description = f"no run{of_preset} yet" if run_spec is None else f"no run{of_preset} named {run_spec}"
    raise RunNotFoundError(f"{save_dir}: {description}", hint=_not_found_hint(save_dir, run_spec))


def _not_found_hint(save_dir: Path, run_spec: str | None) -> str:
    """Return the hint for a run that does not exist."""
    if run_spec and find_sweep_folder(save_dir, run_spec):
        list_command = format_command("mmfw", "runs", "--sweep", run_spec, "--save-dir", save_dir)
        return f"{run_spec} is a sweep; list its runs with `{list_command}`"
    if run_spec is None or run_spec in presets.list_presets():
        command = format_command("mmfw", "train", run_spec or "PRESET", "--save-dir", save_dir)
        return f"create one with `{command}`"
    if run_spec.endswith((".ckpt", ".pth", ".pt")):
        command = format_command("mmfw", "predict", "--checkpoint", run_spec)
        return f"to predict with a checkpoint, run `{command}`"
    names = [*(run.path.parent.name for run in list_runs(save_dir)), *presets.list_presets()]
    names += [f"{SWEEPS_DIR}/{path.name}" for path in list_sweeps(save_dir)]
    list_command = format_command("mmfw", "runs", "--save-dir", save_dir)
    return f"{suggestion_hint(run_spec, names)}list the runs with `{list_command}`"


def find_run_containing(file: Path) -> Run | None:
    """Return the run whose folder contains a file, or ``None``."""
    return next((Run(parent) for parent in file.parents if _is_run_folder(parent)), None)


def _is_run_folder(folder: Path) -> bool:
    """Return whether a folder is a run and not one of its attempts, which have requests, too."""
    is_attempt = folder.parent.name == "attempts" and Run(folder.parents[1]).request_file.is_file()
    return Run(folder).request_file.is_file() and not is_attempt
