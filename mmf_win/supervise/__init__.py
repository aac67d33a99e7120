"""Running a child process well: start it, watch it, stop it, and end its whole tree.

Knows neither torch nor MMF. What differs between the systems is hidden in ``_posix`` and ``_windows``.
"""

from mmf_win.supervise.child import ChildExit, ProcessTree, count_oom_kills, count_stop_requests, run_child

__all__ = ["ChildExit", "ProcessTree", "count_oom_kills", "count_stop_requests", "run_child"]
