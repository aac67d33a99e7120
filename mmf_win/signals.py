"""Signals that ask a process to stop."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNAL_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGBREAK")
#: Ctrl+C (Ctrl+Break on Windows), and the signals of terminals, containers and cluster schedulers.
STOP_SIGNALS = tuple(signal.Signals[name] for name in _SIGNAL_NAMES if hasattr(signal, name))
_KEYBOARD_SIGNALS = {signal.SIGINT, getattr(signal, "SIGBREAK", signal.SIGINT)}
#: Seconds after the first Ctrl+C from which on a further one forces an immediate stop.
FORCE_STOP_AFTER_SECONDS = 1.0


def active_stop_signals() -> list[signal.Signals]:
    """Return the stop signals that this process does not ignore.

    The caller may have had them ignored, as ``nohup`` and shells do for background jobs.
    """
    return [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


class StopRequests:
    """Counter of stop requests, with their urgency.

    Attributes:
        count: 0 without a request; 1 after any number of signals, since a closed terminal, systemd and
            schedulers send several at once; 2 after a Ctrl+C that comes at least
            :data:`FORCE_STOP_AFTER_SECONDS` after the first one.
    """

    def __init__(self) -> None:
        self.count = 0
        self._pressed_at = float("inf")

    def add(self, number: int = 0) -> None:
        """Count the signal ``number``; 0 is a request without a signal."""
        now = time.monotonic()
        is_forced = number in _KEYBOARD_SIGNALS and now >= self._pressed_at + FORCE_STOP_AFTER_SECONDS
        self.count = max(self.count, 2 if is_forced else 1)
        if number in _KEYBOARD_SIGNALS:
            self._pressed_at = min(self._pressed_at, now)


@contextmanager
def block_stop_signals() -> Iterator[None]:
    """Block the stop signals in this thread; processes that the block starts never get them.

    On Windows nothing is blocked, since it delivers no signals to other processes.
    """
    if sys.platform == "win32":
        yield
    else:
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
