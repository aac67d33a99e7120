"""How the worker learns of a stop request, and stops immediately while it has nothing to save."""

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
    """The parent's stop request: a file that exists.

    In the worker a thread looks for it, so that it is honoured at any time: during imports, in a batch that
    never comes, while predicting. Work that must not be interrupted holds it off. Of several ranks, the first
    listens; the others check for it when ``asked`` is read.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._request_noticed = Event()
        self._is_watching = False
        self._lock = Lock()
        self._is_deferred = False

    @property
    def has_noticed_request(self) -> bool:
        """Whether somebody asked; at each update, so a worker that listens looks at no disk for it."""
        return self._request_noticed.is_set() if self._is_watching else self._file.exists()

    def is_requested(self) -> bool:
        """Return whether somebody asked, also if the thread that listens has not seen the file yet."""
        return self.has_noticed_request or self._file.exists()

    def start_watching(self, record_stop: Callable[[], None]) -> None:
        """Look for the request from now on. A signal counts as one, and so does the parent's death.

        The process then ends in another thread, once nothing holds that off; ``record`` is called before.
        """
        self._is_watching = True
        self.handle_signals()
        parent = os.getppid()

        def watch() -> None:
            while not (
                self._request_noticed.wait(_POLL_SECONDS) or self._file.exists() or os.getppid() != parent
            ):
                pass
            self._request_stop()
            with self._lock:
                record_stop()
                os._exit(1)

        Thread(target=watch, name="mmfw-stop", daemon=True).start()

    def handle_signals(self) -> None:
        """Let a signal that would end this process be a request; its helpers never get one."""
        for number in active_stop_signals():
            signal.signal(number, self._request_stop)
        if sys.platform != "win32":  # a rank was started as a helper
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        shield_helpers()

    def defer_stop(self) -> None:
        """From now on the caller checks for the request itself."""
        if not self._is_deferred:
            self._lock.acquire()
            self._is_deferred = True

    def allow_stop(self) -> None:
        """There is nothing to save any more."""
        if self._is_deferred:
            self._is_deferred = False
            self._lock.release()

    def _request_stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        with suppress(OSError):
            self._file.touch()  # for the processes that do not listen
        self._request_noticed.set()


def shield_helpers() -> None:
    """Start helper processes, such as a DataLoader's workers, from now on so that no stop signal ends them.

    Schedulers and containers send a signal to every process, and this one needs its helpers until it has
    saved. When it asks one to leave that does not, the helper is killed, since it gets no SIGTERM.
    """
    start: Any = BaseProcess.start
    if hasattr(start, "__wrapped__"):
        return

    if sys.platform != "win32":
        with block_stop_signals():  # once it runs, multiprocessing unblocks none of them
            resource_tracker.ensure_running()

    @wraps(start)
    def start_shielded(process: Any) -> None:
        with block_stop_signals():
            start(process)
        process._popen.terminate = process._popen.kill

    BaseProcess.start = start_shielded  # type: ignore[method-assign, assignment]
