"""A stream that a thread of its own reads ahead, so that reading it and using it take place side by side."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from mmf_win.archives.base import BLOCK
from mmf_win.threads import result_of

_DEPTH = 4


class ReadAhead(io.RawIOBase):
    """The same bytes as ``stream``, read in blocks by a thread, of which a few wait at any time.

    Two of them, one upon the other, make a pipeline: one thread reads a file, the next decompresses it, and
    the reader of the last one does the rest. Only one thread may read it, and :meth:`close` ends its own.

    Args:
        stream: is read and closed by this.
        observe: called with each block, in the thread, as soon as it is read.
    """

    def __init__(self, stream: IO[bytes], observe: Callable[[bytes], object] = lambda _: None) -> None:
        self._stream, self._observe = stream, observe
        self._rest = memoryview(b"")
        self.taken = 0
        self._thread = ThreadPoolExecutor(1, "mmfw-read")
        self._blocks = deque(self._thread.submit(self._next) for _ in range(_DEPTH))

    def readable(self) -> bool:
        """It is."""
        return True

    def take(self, most: int) -> memoryview:
        """The next bytes, not copied: at most so many, and no more than one block; none at the end only.

        Raises:
            Exception: whatever reading the stream raised, once all bytes before that are taken.
        """
        # The end, or what was raised, stays in front, so that it is there again for the next call.
        if not self._rest and (block := result_of(self._blocks[0])):
            self._blocks.popleft()
            self._blocks.append(self._thread.submit(self._next))
            self._rest = memoryview(block)
            self.taken += len(block)
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
        block = taken.obj
        return block if isinstance(block, bytes) and len(block) == len(taken) else bytes(taken)

    def close(self) -> None:
        """End the thread and close the stream."""
        if not self.closed:
            self._thread.shutdown(cancel_futures=True)
            self._stream.close()
        super().close()

    def _next(self) -> bytes:
        block = self._stream.read(BLOCK)
        self._observe(block)
        return block
