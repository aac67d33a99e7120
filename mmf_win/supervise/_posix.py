"""Process groups and signals on Linux and macOS."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

assert sys.platform != "win32"

stop_signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def group_options() -> dict[str, Any]:
    """Arguments for Popen: a session of its own, so that the terminal's Ctrl+C reaches only the parent."""
    return {"start_new_session": True}


def kill_tree(child: subprocess.Popen[bytes]) -> None:
    """End the child and every process of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
