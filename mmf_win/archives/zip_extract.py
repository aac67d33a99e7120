"""Extracts the members of a zip on several threads, and those of the classic encryption many at a time.

Each thread works in rounds. It fills its arena with the next piece of each member that it has in hand,
decrypts all these pieces side by side, and passes each one on: inflate, checksum, file. So memory depends
neither on the size of the archive nor on that of a member, and even members of very different sizes keep all
lanes busy.
"""

from __future__ import annotations

import zipfile
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from threading import Lock
from types import ModuleType

from mmf_win.archives.base import Advance, Extracted, Output, damaged
from mmf_win.archives.crew import Crew, share_out, worker_count
from mmf_win.archives.inflate import Inflater
from mmf_win.archives.winzip_aes import AesKeys
from mmf_win.archives.zip_reader import Task, ZipReader
from mmf_win.archives.zipcrypto import HEADER_SIZE, Cipher, has_fast_wheel

_ARENA = 16 << 20
# Not a multiple of 4096: equal distances between the streams would put all of them into one set of the cache.
_PIECE = (256 << 10) + 64
_SMALLEST_ROUND = 8 << 20
_LARGE = 4 << 20
_MOST_IN_HAND = 1024
_FEW = 8


class Queue:
    """Tasks that threads take from: the largest first, then all others in the order of the archive.

    A large member occupies a single lane for long. Begun last, it would end when all others are idle; and a
    thread that took all of them would work on when the other threads have ended.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        in_order = sorted(tasks, key=lambda task: task.info.header_offset)
        large = [task for task in in_order if task.info.compress_size >= _LARGE]
        self._large = deque(sorted(large, key=lambda task: -task.info.compress_size))
        self._others = deque(task for task in in_order if task.info.compress_size < _LARGE)
        self._lock = Lock()
        self.left = sum(task.info.compress_size for task in in_order)

    def take(self, most: int | None = None) -> Task | None:
        """The next task, a large one only if it has no more than ``most`` bytes; None when there is none."""
        with self._lock:
            if self._large and (most is None or self._large[0].info.compress_size <= most):
                task = self._large.popleft()
            elif self._others:
                task = self._others.popleft()
            else:
                return None
            self.left -= task.info.compress_size
            return task


def extract(
    path: Path, secret: bytes, tasks: Iterable[Task], progress: Advance
) -> Generator[Extracted, None, None]:
    """Write and verify members; see :meth:`mmf_win.archives.base.Archive.extract`."""
    listed = list(tasks)
    classic = [task for task in listed if task.classic]
    size = sum(task.info.compress_size for task in listed)
    count = max(1, min(worker_count(), size // _SMALLEST_ROUND))
    crew = Crew()
    if _native() is None and classic and count > 1:
        from mmf_win.archives.processes import extract_in_process

        jobs = [
            partial(extract_in_process, path, secret, sorted(share, key=lambda task: task.info.header_offset))
            for share in share_out(listed, count, lambda task: task.info.compress_size)
        ]
        yield from crew.work(jobs, progress)
        return
    side_by_side = Queue(classic if _native() else ())
    one_by_one = Queue(task for task in listed if not (task.classic and _native()))
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(ZipReader(path, secret))) for _ in range(count)]
        workers = [_Worker(path, reader, secret, side_by_side, one_by_one, count) for reader in readers]
        yield from crew.work([worker.work for worker in workers], progress)


def engine() -> str:
    """What decrypts here, for people."""
    if native := _native():
        return f"C extension, {native.kernels()[0]} kernel, {worker_count()} threads"
    cipher = "fast-zip-decryption" if has_fast_wheel() else "pure Python"
    return f"{cipher} in {worker_count()} processes; a C compiler, or mmfw's own wheel, makes it faster"


def _native() -> ModuleType | None:
    """The C extension; None where it was not built."""
    try:
        from mmf_win.archives import _zipcrypto
    except ImportError:
        return None
    return _zipcrypto


class _Worker:
    """A thread's work: the members of the classic encryption in rounds, then all others one by one."""

    def __init__(
        self,
        path: Path,
        reader: ZipReader,
        secret: bytes,
        side_by_side: Queue,
        one_by_one: Queue,
        workers: int,
    ) -> None:
        self._path = path
        self._reader = reader
        self._keys = Cipher(secret).keys
        self._side_by_side, self._one_by_one = side_by_side, one_by_one
        self._workers = workers

    def work(self, crew: Crew) -> None:
        """Extract until there is no more."""
        if self._side_by_side.left:
            self._decrypt_in_rounds(crew)
        while not crew.stopped and (tasks := self._next_few()):
            keys = self._aes_keys(tasks)
            for task in tasks:
                name = task.member.name
                with Output(self._path, task.member, task.target, crew.advance) as output:
                    for block in self._reader.content(name, task.info, keys.get(name)):
                        if crew.stopped:
                            return
                        output.write(block)
                    crew.report(output.finish())

    def _next_few(self) -> list[Task]:
        """As many as it takes to derive keys at little cost, if no other thread has to wait for them then."""
        tasks: list[Task] = []
        while sum(task.info.compress_size for task in tasks) < _LARGE and len(tasks) < _FEW:
            task = self._one_by_one.take(_LARGE if tasks else None)
            if task is None:
                break
            tasks.append(task)
        return tasks

    def _aes_keys(self, tasks: Iterable[Task]) -> dict[str, AesKeys]:
        """By name, for the members that need some."""
        members = {task.member.name: task.info for task in tasks if task.aes}
        if not members:
            return {}
        return dict(zip(members, self._reader.aes_keys(list(members.items())), strict=True))

    def _decrypt_in_rounds(self, crew: Crew) -> None:
        from mmf_win.archives import _zipcrypto

        kernel = _zipcrypto.kernels()[0]
        arena = bytearray(min(_ARENA, self._side_by_side.left + _PIECE))
        view = memoryview(arena)
        in_hand: list[_Stream] = []
        try:
            while not crew.stopped:
                self._fill(in_hand, view)
                if not in_hand:
                    return
                by_size = sorted(in_hand, key=lambda stream: -stream.size)
                spans = [(stream.start, stream.size, stream.keys) for stream in by_size]
                for stream, keys in zip(by_size, _zipcrypto.decrypt(arena, spans, kernel), strict=True):
                    stream.keys = keys
                for stream in in_hand:
                    if crew.stopped:
                        return
                    stream.write(view[stream.start : stream.start + stream.size], crew)
                in_hand = [stream for stream in in_hand if stream.left]
        finally:
            for stream in in_hand:
                stream.close()

    def _fill(self, in_hand: list[_Stream], view: memoryview) -> None:
        """Read the next piece of each stream, and begin new ones while there is room for them."""
        queue, used = self._side_by_side, 0
        for stream in in_hand:
            used += stream.read(self._reader, view, used)
        # Towards the end the rounds grow smaller, so that the threads end together.
        room = min(len(view), max(_SMALLEST_ROUND, queue.left // (2 * self._workers)))
        while used + _PIECE <= room and len(in_hand) < _MOST_IN_HAND:
            share = queue.left // self._workers - sum(stream.left for stream in in_hand)
            task = queue.take(share if in_hand else None)
            if task is None:
                return
            stream = _Stream(self._path, task, self._keys, self._reader)
            in_hand.append(stream)
            used += stream.read(self._reader, view, used)


class _Stream:
    """A member on its way through the rounds of one thread."""

    def __init__(self, path: Path, task: Task, keys: tuple[int, int, int], reader: ZipReader) -> None:
        self._path, self._task, self._reader = path, task, reader
        self._offset = reader.data_offset(task.member.name, task.info)
        self._output: Output | None = None
        self._inflater: Inflater | None = None
        self.keys = keys
        self.left = task.info.compress_size
        self.start = self.size = 0

    def read(self, reader: ZipReader, view: memoryview, start: int) -> int:
        """Read the next piece to ``start`` and return its size."""
        self.start, self.size = start, min(self.left, _PIECE)
        reader.read_at(self._task.member.name, self._offset, view[start : start + self.size])
        self._offset += self.size
        self.left -= self.size
        return self.size

    def write(self, plain: memoryview, crew: Crew) -> None:
        """Write the piece, now decrypted; the last one ends the member."""
        name = self._task.member.name
        if self._output is None:
            self._reader.check_header(name, self._task.info, plain)
            plain = plain[HEADER_SIZE:]
            self._output = Output(self._path, self._task.member, self._task.target, crew.advance)
            if self._task.info.compress_type == zipfile.ZIP_DEFLATED:
                self._inflater = Inflater()
        try:
            if self._inflater is None:
                self._output.write(plain)
            else:
                for block in self._inflater.feed(plain):
                    self._output.write(block)
                if not self.left:
                    self._output.write(self._inflater.flush())
        except Inflater.error as error:
            raise damaged(self._path, "its compressed data is damaged", name) from error
        if not self.left:
            crew.report(self._output.finish())

    def close(self) -> None:
        """Let go of the file, which is removed unless it is complete."""
        if self._output is not None:
            self._output.close()
