"""A stream that a thread of its own reads ahead, so that reading it and using it take place side by side."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import IO

_BLOCK = 1 << 20
_DEPTH = 4
_TICK = 0.1  # on Windows, Ctrl+C does not interrupt a longer wait


class ReadAhead(io.RawIOBase):
    """The same bytes as ``stream``, read in blocks by a thread, of which a few wait at any time.

    Two of them, one upon the other, make a pipeline: one thread reads a file, the next decompresses it, and
    whoever reads the last one does the rest. Only one thread may read it, and :meth:`close` ends its own.

    Args:
        stream: is read and closed by this; by ``read1`` where it has that, which copies less.
        observe: called with each block, in the thread, as soon as it is read.
    """

    def __init__(self, stream: IO[bytes], observe: Callable[[bytes], object] = lambda _: None) -> None:
        self._stream, self._observe = stream, observe
        self._blocks: Queue[bytes | BaseException] = Queue(_DEPTH)
        self._stop = Event()
        self._rest = memoryview(b"")
        self._end: BaseException | None = None
        self._ended = False
        self.taken = 0
        self._thread = Thread(target=self._feed, name="mmfw-read", daemon=True)
        self._thread.start()

    def readable(self) -> bool:
        """It is."""
        return True

    def take(self, most: int) -> memoryview:
        """The next bytes, not copied: at most so many, and no more than one block; none at the end only.

        Raises:
            Exception: whatever reading the stream raised, once all bytes before that are taken.
        """
        if not self._rest and not self._next():
            return self._rest
        taken, self._rest = self._rest[:most], self._rest[most:]
        return taken

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill as much of ``buffer`` as one block can; as :meth:`take`."""
        taken = self.take(len(buffer))
        buffer[: len(taken)] = taken
        return len(taken)

    def read(self, size: int | None = -1, /) -> bytes:
        """At most ``size`` bytes, and no more than one block; as :meth:`take`."""
        if size is None or size < 0:
            return self.readall()
        taken = self.take(size)
        whole = taken.obj
        return whole if isinstance(whole, bytes) and len(whole) == len(taken) else bytes(taken)

    def close(self) -> None:
        """End the thread and close the stream."""
        if not self.closed:
            self._stop.set()
            with suppress(Empty):  # so that the thread need not wait for room
                while True:
                    self._blocks.get_nowait()
            self._thread.join()
            self._stream.close()
        super().close()

    def _next(self) -> bool:
        while not self._ended:
            try:
                block = self._blocks.get(timeout=_TICK)
            except Empty:
                continue
            if isinstance(block, BaseException):
                self._ended, self._end = True, block
            elif not block:
                self._ended = True
            else:
                self._rest = memoryview(block)
                self.taken += len(block)
                return True
        if self._end is not None:
            raise self._end
        return False

    def _feed(self) -> None:
        block: bytes | BaseException = b"-"
        read = getattr(self._stream, "read1", self._stream.read)
        while block and isinstance(block, bytes):
            try:
                block = read(_BLOCK)
                self._observe(block)
            except BaseException as error:
                block = error
            if not self._put(block):
                return

    def _put(self, block: bytes | BaseException) -> bool:
        while not self._stop.is_set():
            try:
                self._blocks.put(block, timeout=_TICK)
            except Full:
                continue
            return True
        return False
