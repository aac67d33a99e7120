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


def stop_signals() -> list[signal.Signals]:
    """The signals that ask for an end: Ctrl+C, kill, and a closed terminal unless nohup said to ignore it."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


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
