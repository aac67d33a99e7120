"""Supervision of child processes: start, watch and stop a child, and end its process tree.

Independent of torch and MMF. ``_posix`` and ``_windows`` contain what differs between the systems.
"""

from mmf_win.supervise.child import ChildExit, ProcessTree, StopPolicy, count_oom_kills, count_stop_requests, run_child

__all__ = ["ChildExit", "ProcessTree", "StopPolicy", "count_oom_kills", "count_stop_requests", "run_child"]
