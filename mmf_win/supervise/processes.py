"""The system's own half of supervision, chosen by platform."""

import sys

if sys.platform == "win32":
    from mmf_win.supervise._windows import Tree, stop_signals
else:
    from mmf_win.supervise._posix import Tree, stop_signals

__all__ = ["Tree", "stop_signals"]
