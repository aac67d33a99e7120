"""Having the system write a file to the disk while it still grows, so that nobody waits at its end."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from types import TracebackType

from mmf_win.unpacking.staging import flush

_ENOUGH = 1 << 25


class Flushing:
    """A thread that flushes the file that is being written; a context manager.

    It only goes ahead: the file must still be flushed when it is complete.

    Attributes:
        file: the one that is being written.
    """

    def __init__(self) -> None:
        self.file: Path | None = None
        self._grown = 0
        self._files: Queue[Path | None] = Queue(1)
        self._thread = Thread(target=self._flush, name="mmfw-flush", daemon=True)

    def __enter__(self) -> Flushing:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.put(None)
        self._thread.join()

    def advance(self, amount: int) -> None:
        """About so many bytes more are written."""
        self._grown += amount
        # Windows would not let a file that is broken be removed meanwhile.
        if self._grown >= _ENOUGH and self.file is not None and sys.platform != "win32":
            with suppress(Full):  # the last ones are still on their way
                self._files.put_nowait(self.file)
                self._grown = 0

    def _flush(self) -> None:
        while (file := self._files.get()) is not None:
            with suppress(OSError):
                flush(file)
