"""The system's own half of supervision, chosen by platform."""

import sys

if sys.platform == "win32":
    from mmf_win.supervise._windows import group_options, is_alive, kill_tree, stop_signals
else:
    from mmf_win.supervise._posix import group_options, is_alive, kill_tree, stop_signals

__all__ = ["group_options", "is_alive", "kill_tree", "stop_signals"]
