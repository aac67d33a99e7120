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

_INTERVAL = 0.1


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

    def is_requested(self) -> bool:
        """Return whether somebody asked, also if the thread that listens has not seen the file yet."""
        return self.asked or self._file.exists()

    def listen(self, record: Callable[[], None]) -> None:
        """Look for the request from now on. A signal counts as one, and so does the parent's death.

        The process then ends in another thread, once nothing holds that off; ``record`` is called before.
        """
        self._listening = True
        self.take_signals()
        parent = os.getppid()

        def look() -> None:
            while not (self._seen.wait(_INTERVAL) or self._file.exists() or os.getppid() != parent):
                pass
            self._ask()
            with self._lock:
                record()
                os._exit(1)

        Thread(target=look, name="mmfw-stop", daemon=True).start()

    def take_signals(self) -> None:
        """Let a signal that would end this process be a request; its helpers never get one."""
        for number in active_stop_signals():
            signal.signal(number, self._ask)
        if sys.platform != "win32":  # a rank was started as a helper
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        shield_helpers()

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
