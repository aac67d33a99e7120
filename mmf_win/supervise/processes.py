"""The system's own half of supervision, chosen by platform."""

import sys

if sys.platform == "win32":
    from mmf_win.supervise._windows import Tree, stop_signals, window_closed
else:
    from mmf_win.supervise._posix import Tree, stop_signals, window_closed

__all__ = ["Tree", "stop_signals", "window_closed"]
