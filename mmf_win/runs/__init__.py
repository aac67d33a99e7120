"""A run on disk: its folder, events, checkpoints and results.

In a notebook, ``mmf_win.runs.frame()`` is a table of all runs, ``find()`` the newest of them, which shows its
page, and ``events()`` a table of what happened in it.
"""

from mmf_win.runs.notebook import events_dataframe, find_run, runs_dataframe

__all__ = ["events_dataframe", "find_run", "runs_dataframe"]
