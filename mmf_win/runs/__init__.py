"""A run on disk: its folder, events, checkpoints and results.

In a notebook, ``mmf_win.runs.frame()`` is a table of all runs.
"""

from mmf_win.runs.history import frame

__all__ = ["frame"]
