"""How the worker learns of a stop request, and stops immediately while it has nothing to save."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from types import FrameType
from typing import NoReturn

_INTERVAL = 0.1
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")


class Stop:
    """The parent's stop request: a file that exists.

    In the worker a thread looks for it, so that it is honoured at any time: during imports, in a batch that
    never comes, while predicting. Work that must not be interrupted holds it off. Of several ranks, the first
    listens; the others check for it when ``asked`` is read.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen = Event()
        self._listening = False
        self._lock = Lock()
        self._held = False

    @property
    def asked(self) -> bool:
        """Whether somebody asked; at each update, so a worker that listens looks at no disk for it."""
        return self._seen.is_set() if self._listening else self._file.exists()

    def listen(self, leave: Callable[[], NoReturn]) -> None:
        """Look for the request from now on. A signal counts as one, and so does the parent's death.

        ``leave`` ends the process; it is called in another thread, once nothing holds it off.
        """
        self._listening = True
        self.take_signals()
        parent = os.getppid()

        def look() -> None:
            while not (self._seen.wait(_INTERVAL) or self._file.exists() or os.getppid() != parent):
                pass
            self._ask()
            with self._lock:
                leave()

        Thread(target=look, name="mmfw-stop", daemon=True).start()

    def take_signals(self) -> None:
        """Let a signal that would end this process be a request."""
        for name in _SIGNALS:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._ask)

    def defer_stop(self) -> None:
        """From now on the caller checks for the request itself."""
        if not self._held:
            self._lock.acquire()
            self._held = True

    def release(self) -> None:
        """There is nothing to save any more."""
        if self._held:
            self._held = False
            self._lock.release()

    def _ask(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        with suppress(OSError):
            self._file.touch()  # for the processes that do not listen
        self._seen.set()
