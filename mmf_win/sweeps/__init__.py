"""Sweeps of many experiments: planning, running, progress and results.

In a notebook, :func:`sweep_dataframe` returns the results of a sweep, and :class:`Examiner` builds a table
with custom parsers, also from the folders of mlrunner.
"""

from typing import TYPE_CHECKING

from mmf_win.deprecation import deprecated_aliases
from mmf_win.sweeps.examiner import Examiner, Experiment, latest_log
from mmf_win.sweeps.table import sweep_dataframe

__all__ = ["Examiner", "Experiment", "latest_log", "sweep_dataframe"]

if not TYPE_CHECKING:
    __getattr__ = deprecated_aliases(__name__, {"frame": "sweep_dataframe"})
