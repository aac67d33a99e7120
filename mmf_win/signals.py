"""The signals that ask a process to stop."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNAL_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGBREAK")
#: Ctrl+C (Ctrl+Break on Windows), and what terminals, containers and cluster schedulers send.
STOP_SIGNALS = tuple(signal.Signals[name] for name in _SIGNAL_NAMES if hasattr(signal, name))
_KEYBOARD_SIGNALS = {signal.SIGINT, getattr(signal, "SIGBREAK", signal.SIGINT)}
#: Seconds after a Ctrl+C; one that comes later is meant to end everything at once.
FORCE_STOP_AFTER_SECONDS = 1.0


def active_stop_signals() -> list[signal.Signals]:
    """Return the stop signals that this process does not ignore.

    Whoever started it may have had them ignored, as ``nohup`` and shells do for a job in the background.
    """
    return [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


class StopRequests:
    """Counts how urgently a process was asked to stop.

    Attributes:
        count: 0 while nobody asked; 1 for any number of signals, since a closed terminal, systemd and
            schedulers send several at once; 2 once Ctrl+C was pressed again
            :data:`FORCE_STOP_AFTER_SECONDS` a first.
    """

    def __init__(self) -> None:
        self.count = 0
        self._pressed_at = float("inf")

    def add(self, number: int = 0) -> None:
        """Count the signal ``number``; 0 is a request by other means."""
        now = time.monotonic()
        impatient = number in _KEYBOARD_SIGNALS and now >= self._pressed_at + FORCE_STOP_AFTER_SECONDS
        self.count = max(self.count, 2 if impatient else 1)
        if number in _KEYBOARD_SIGNALS:
            self._pressed_at = min(self._pressed_at, now)


@contextmanager
def block_stop_signals() -> Iterator[None]:
    """Block the stop signals in this thread; a process that the block starts never gets them.

    Windows delivers no signals to other processes.
    """
    if sys.platform == "win32":
        yield
    else:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
