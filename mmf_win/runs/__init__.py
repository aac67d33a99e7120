"""Runs on disk: their folders, events, checkpoints and results.

In a notebook, ``mmf_win.runs.runs_dataframe()`` returns a table of all runs, ``find_run()`` the newest run,
which displays its report, and ``events_dataframe()`` a table of the events of a run.
"""

from typing import TYPE_CHECKING

from mmf_win.deprecation import deprecated_aliases
from mmf_win.runs.notebook import events_dataframe, find_run, runs_dataframe

__all__ = ["events_dataframe", "find_run", "runs_dataframe"]

if not TYPE_CHECKING:
    __getattr__ = deprecated_aliases(
        __name__, {"events": "events_dataframe", "find": "find_run", "frame": "runs_dataframe"}
    )
