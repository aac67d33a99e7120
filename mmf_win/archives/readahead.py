"""What a tar holds, which a thread of its own reads and decompresses ahead of whoever uses it."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zlib_ng import gzip_ng

from mmf_win.archives.base import BLOCK
from mmf_win.threads import Advance, result_of

_DEPTH = 4


class ReadAhead:
    """The content of a file for tarfile to walk through, of which a few blocks wait at any time.

    Only one thread may read it, and :meth:`close` ends its own. In the reader's, ``progress`` is called with
    the number of the file's own bytes that were read.
    """

    def __init__(self, path: Path, is_packed: bool, progress: Advance) -> None:
        self._file = path.open("rb", buffering=0)
        self._stream = gzip_ng.open(self._file) if is_packed else self._file
        self._progress = progress
        self._rest = memoryview(b"")
        self._at = self._reported = 0
        self._thread = ThreadPoolExecutor(1, "mmfw-read")
        self._blocks = deque(self._thread.submit(self._stream.read, BLOCK) for _ in range(_DEPTH))

    def take(self, most: int) -> memoryview:
        """The next bytes, not copied: at most so many, and no more than one block; none at the end only.

        Raises whatever reading the file raised, once all bytes before that are taken.
        """
        if not self._rest:
            # The end, or what was raised, stays in front, so that it is there again for the next call.
            if block := result_of(self._blocks[0]):
                self._blocks.popleft()
                self._blocks.append(self._thread.submit(self._stream.read, BLOCK))
                self._rest = memoryview(block)
            read = self._file.tell()
            self._progress(read - self._reported)
            self._reported = read
        taken, self._rest = self._rest[:most], self._rest[most:]
        self._at += len(taken)
        return taken

    def read(self, size: int) -> bytes:
        """So many bytes; less at the end only."""
        data = bytes(self.take(size))
        while len(data) < size and (more := self.take(size - len(data))):
            data += more
        return data

    def tell(self) -> int:
        """How many bytes were taken."""
        return self._at

    def seek(self, position: int) -> None:
        """Go forward to this position, or to the end."""
        while self._at < position and self.take(min(position - self._at, BLOCK)):
            pass

    def close(self) -> None:
        """End the thread and close the file."""
        self._thread.shutdown(cancel_futures=True)
        self._file.close()
