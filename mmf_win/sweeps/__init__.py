"""Many experiments at once: what to run, where, how far they are, and what came of them.

In a notebook, :func:`sweep_dataframe` is the table of a sweep, and :class:`Examiner` makes one by parsers of your own,
also of the folders that mlrunner has left.
"""

from mmf_win.sweeps.examiner import Examiner, Experiment, latest_log
from mmf_win.sweeps.table import sweep_dataframe

__all__ = ["Examiner", "Experiment", "latest_log", "sweep_dataframe"]
