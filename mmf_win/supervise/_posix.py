"""Process trees on Linux and macOS, held together by a session."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

assert sys.platform != "win32"

stop_signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Tree:
    """A process and all its descendants.

    They have a session of their own, so that the terminal's Ctrl+C reaches only the parent.

    Args:
        command: the program and its arguments.
        options: more arguments for Popen.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self.process = subprocess.Popen(command, start_new_session=True, **options)

    def close(self) -> None:
        """End what is left of the tree."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
