"""Detection of stop requests in the worker, and an immediate stop while there is nothing to save."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Lock, Thread
from types import FrameType
from typing import Any

from mmf_win.signals import STOP_SIGNALS, active_stop_signals, block_stop_signals

_POLL_SECONDS = 0.1


class StopSignal:
    """The parent's stop request, which is the existence of a file.

    In the worker, a thread watches for the file, so a stop works at any time: during imports, while waiting
    for a batch, during prediction. Work that must not be interrupted defers the stop. If there are several
    ranks, only the first one on a machine watches; the others look for the file when they check
    ``has_noticed_request``.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._request_noticed = Event()
        self._is_watching = False
        self._lock = Lock()
        self._is_deferred = False

    @property
    def has_noticed_request(self) -> bool:
        """True if a stop request is known; a process that watches does not access the disk for this check."""
        return self._request_noticed.is_set() if self._is_watching else self._file.exists()

    def is_requested(self) -> bool:
        """Return whether a stop was requested, even if the watching thread has not noticed it yet."""
        return self.has_noticed_request or self._file.exists()

    def start_watching(self, record_stop: Callable[[], None]) -> None:
        """Watch for the request in a thread; a stop signal or the parent's death counts as a request.

        The thread ends the process as soon as the stop is not deferred.

        Args:
            record_stop: Called before the process ends.
        """
        self._is_watching = True
        self.handle_signals()
        parent = os.getppid()

        def watch() -> None:
            while not (self._request_noticed.wait(_POLL_SECONDS) or self._file.exists() or os.getppid() != parent):
                pass
            self._request_stop()
            with self._lock:
                record_stop()
                os._exit(1)

        Thread(target=watch, name="mmfw-stop", daemon=True).start()

    def handle_signals(self) -> None:
        """Treat stop signals as stop requests in this process; its helper processes never get them."""
        for number in active_stop_signals():
            signal.signal(number, self._request_stop)
        if sys.platform != "win32":  # a rank starts with blocked signals, like a helper
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        shield_helpers()

    def defer_stop(self) -> None:
        """Keep the watching thread from ending the process; the caller checks for the request."""
        if not self._is_deferred:
            self._lock.acquire()
            self._is_deferred = True

    def allow_stop(self) -> None:
        """Let the watching thread end the process again, because there is nothing left to save."""
        if self._is_deferred:
            self._is_deferred = False
            self._lock.release()

    def _request_stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        with suppress(OSError):
            self._file.touch()  # for the processes that do not watch
        self._request_noticed.set()


def shield_helpers() -> None:
    """Start helper processes, such as DataLoader workers, with blocked stop signals from now on.

    Schedulers and containers send a signal to every process, but this process needs its helpers until it has
    saved. Because helpers do not get SIGTERM, ``terminate`` kills them.
    """
    start: Any = BaseProcess.start
    if hasattr(start, "__wrapped__"):
        return

    if sys.platform != "win32":
        with block_stop_signals():  # starting it later would unblock the signals
            resource_tracker.ensure_running()

    @wraps(start)
    def start_shielded(process: Any) -> None:
        with block_stop_signals():
            start(process)
        process._popen.terminate = process._popen.kill

    BaseProcess.start = start_shielded  # type: ignore[method-assign, assignment]
