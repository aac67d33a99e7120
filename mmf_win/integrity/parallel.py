"""The hashes of many files, made side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeAlias

from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.manifest import Check
from mmf_win.threads import Advance, ThreadGroup, worker_count

Hashed: TypeAlias = tuple[str, str | OSError, Check | None]


def hash_files(files: Mapping[str, Path], progress: Advance) -> Iterator[Hashed]:
    """Hash each file by SHA-256, several at a time, in any order.

    Whenever this ends, by Ctrl+C too, all threads have ended before.

    Args:
        files: any key → the file; whoever knows their sizes had better put the largest first.
        progress: called with the number of bytes just read, in this thread.

    Yields:
        the key; the hash in hex, or why the file could not be read; the state in which the file was both
        before and after, None when it was changed meanwhile.
    """
    group: ThreadGroup[Hashed] = ThreadGroup()
    queue: SimpleQueue[tuple[str, Path]] = SimpleQueue()
    for item in files.items():
        queue.put(item)

    def hash_until_empty() -> None:
        while True:
            try:
                key, path = queue.get_nowait()
            except Empty:
                return
            try:
                before = path.stat()
                sha256 = file_digest(path, progress=group.advance).hex()
                check = Check.now(path.stat())
            except OSError as error:
                group.report((key, error, None))
            else:
                group.report((key, sha256, check if check.is_of(before) else None))

    yield from group.run([hash_until_empty] * min(worker_count(), len(files)), progress)
