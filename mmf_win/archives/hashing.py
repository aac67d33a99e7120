"""The hash of an archive, made while its members are extracted."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Protocol

_PIECE = 1 << 20


class Digest(Protocol):
    """What can be fed with bytes, as the objects of hashlib can."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Take the next bytes."""


class HashingBeside:
    """Feeds a file to a digest in a thread; a context manager that ends the thread, done or not.

    The system reads the file from the disk once only: whoever comes second to a part of it, this thread or
    those that extract, finds it in memory.

    Args:
        path: the file; opened at once.
        digest: gets all of it, in order.
    """

    def __init__(self, path: Path, digest: Digest) -> None:
        self._digest = digest
        self._file = path.open("rb", buffering=0)
        self._stop = Event()
        self._error: OSError | None = None
        self._thread = Thread(target=self._feed, name="mmfw-hash", daemon=True)

    def __enter__(self) -> HashingBeside:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._file.close()

    def finish(self) -> None:
        """Wait until the digest has got everything.

        Raises:
            OSError: the file could not be read.
        """
        while self._thread.is_alive():
            self._thread.join(0.1)  # on Windows, Ctrl+C does not interrupt a longer wait
        if self._error is not None:
            raise self._error

    def _feed(self) -> None:
        piece = bytearray(_PIECE)
        view = memoryview(piece)
        try:
            while not self._stop.is_set() and (size := self._file.readinto(piece)):
                self._digest.update(view[:size])
        except OSError as error:
            self._error = error
