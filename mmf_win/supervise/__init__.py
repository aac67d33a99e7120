"""Running a child process well: start it, watch it, stop it, and end its whole tree.

Knows neither torch nor MMF. What differs between the systems is hidden in ``_posix`` and ``_windows``.
"""

from mmf_win.supervise.child import Ended, Tree, oom_kills, run_child, stop_requests

__all__ = ["Ended", "Tree", "oom_kills", "run_child", "stop_requests"]
