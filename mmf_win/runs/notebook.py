"""Runs for notebooks, as pandas data frames."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mmf_win.errors import UsageError
from mmf_win.paths import MmfPaths
from mmf_win.protocol import read_events
from mmf_win.runs import lookup
from mmf_win.runs.folder import Run
from mmf_win.runs.history import RunSummary, summarize_runs
from mmf_win.upstream.install import require_packages

if TYPE_CHECKING:
    import pandas


def runs_dataframe(save_dir: Path | str | None = None) -> pandas.DataFrame:
    """Return a table with one row per run, newest first.

    The columns are those of ``mmfw runs --json``; ``started`` is in UTC.

    Args:
        save_dir: Folder of the runs; ``None`` for ``MMF_SAVE_DIR``, else ``./save``.

    Returns:
        The table.

    Raises:
        MmfEnvironmentError: pandas is not installed.
    """
    require_packages("pandas", extra="[notebook]")
    import pandas

    rows = [summary.columns() for summary in summarize_runs(MmfPaths.resolve(save_dir=save_dir).save_dir)]
    table = pandas.DataFrame(rows, columns=list(RunSummary("", "").columns()))
    table["started"] = pandas.to_datetime(table["started"], unit="s", utc=True)
    return table


def find_run(run: str | None = None, save_dir: Path | str | None = None) -> Run:
    """Return a run given by ID, name (newest run of that name) or folder.

    As the last line of a cell, the run displays its report.

    Args:
        run: ID, name or folder; ``None`` for the newest run.
        save_dir: Folder of the runs; ``None`` for ``MMF_SAVE_DIR``, else ``./save``.

    Returns:
        The run.

    Raises:
        RunNotFoundError: No run matches.
    """
    return lookup.find_run(MmfPaths.resolve(save_dir=save_dir).save_dir, run)


def events_dataframe(run: Run, kind: str = "train") -> pandas.DataFrame:
    """Return a table with one row per event of a run, which may still be training.

    The time ``t`` is in UTC. ``train`` events have columns such as ``loss`` and ``lr``, ``val`` events
    ``metrics.auroc`` and other metrics. ``mmf_win/protocol/__init__.py`` lists all kinds of events.

    Args:
        run: The run.
        kind: Kind of the events.

    Returns:
        The table.

    Raises:
        UsageError: The run has no event of this kind.
        MmfEnvironmentError: pandas is not installed.
    """
    require_packages("pandas", extra="[notebook]")
    import pandas

    events = read_events(run.events)
    if not (matches := [event for event in events if event["kind"] == kind]):
        kinds = ", ".join(dict.fromkeys(event["kind"] for event in events)) or "none"
        raise UsageError(f"run {run.id} has no events of kind {kind!r}", hint=f"kinds in this run: {kinds}")
    table = pandas.json_normalize(matches).drop(columns=["kind"])
    if "t" in table:
        table["t"] = pandas.to_datetime(table["t"], unit="s", utc=True)
    return table
