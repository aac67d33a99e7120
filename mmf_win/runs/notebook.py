"""Runs for notebooks: which there are, which one is meant, and what happened in it."""

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
    """One row a run, the newest first; the columns are those of ``mmfw runs --json``, ``started`` in UTC.

    Args:
        save_dir: where runs are kept; None for ``MMF_SAVE_DIR``, else ``./save``.

    Raises:
        MmfError: pandas is not installed.
    """
    require_packages("pandas", extra="[notebook]")
    import pandas

    rows = [summary.columns() for summary in summarize_runs(MmfPaths.resolve(save_dir=save_dir).save_dir)]
    table = pandas.DataFrame(rows, columns=list(RunSummary("", "").columns()))
    table["started"] = pandas.to_datetime(table["started"], unit="s", utc=True)
    return table


def find_run(run: str | None = None, save_dir: Path | str | None = None) -> Run:
    """A run by its id, its name (the newest of that name) or its folder; without one, the newest.

    As the last line of a cell, it shows its page.

    Args:
        save_dir: where runs are kept; None for ``MMF_SAVE_DIR``, else ``./save``.

    Raises:
        NoRun: there is none.
    """
    return lookup.first_usable_run(MmfPaths.resolve(save_dir=save_dir).save_dir, run, lambda item: item)


def events_dataframe(run: Run, kind: str = "train") -> pandas.DataFrame:
    """What happened in a run, one row an event; it may still be training.

    ``t`` is in UTC. Of ``train`` there are ``loss``, ``lr`` and more, of ``val`` the ``metrics``, such as
    ``metrics.auroc``; the other kinds are listed in ``mmf_win/protocol/__init__.py``.

    Raises:
        UsageError: there is no event of this kind.
        MmfError: pandas is not installed.
    """
    require_packages("pandas", extra="[notebook]")
    import pandas

    events = read_events(run.events)
    if not (matches := [event for event in events if event["kind"] == kind]):
        kinds = ", ".join(dict.fromkeys(event["kind"] for event in events)) or "none at all"
        raise UsageError(f"run {run.id} has no event of the kind {kind!r}", hint=f"it has: {kinds}")
    table = pandas.json_normalize(matches).drop(columns=["kind"])
    if "t" in table:
        table["t"] = pandas.to_datetime(table["t"], unit="s", utc=True)
    return table
