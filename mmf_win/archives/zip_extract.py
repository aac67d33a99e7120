"""Extracts the members of a zip on several threads, and those of the classic encryption many at a time.

Each thread works in rounds. It fills its arena with the next piece of each member that it has in hand,
decrypts all these pieces side by side, and passes each one on: inflate, checksum, file. So memory depends
neither on the size of the archive nor on that of a member, and even members of very different sizes keep all
lanes busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

from mmf_win.archives.base import Extracted, Output, write
from mmf_win.archives.zip_reader import Decoder, ZipMember, ZipReader
from mmf_win.archives.zipcrypto import HEADER_SIZE, Cipher, Keys, native
from mmf_win.machine import default_thread_count
from mmf_win.threads import AdvanceCallback, ThreadGroup

#: The bytes of memory in which a thread decrypts.
ARENA = 16 << 20
# Not a multiple of 4096: equal distances between the streams would put all of them into one set of the cache.
#: The bytes of a member that are read at a time.
PIECE = (256 << 10) + 64
#: The bytes that a thread takes at a time, at least.
SMALLEST_ROUND = 8 << 20
#: The packed bytes from which a member is taken before smaller ones.
LARGE = 4 << 20
_MOST_IN_HAND = 1024


def extract(
    path: Path, secret: bytes, targets: Mapping[ZipMember, Path], progress: AdvanceCallback
) -> Generator[Extracted, None, None]:
    """Write and verify members; see :meth:`mmf_win.archives.base.Archive.extract`."""
    is_native = native() is not None
    packed_size = sum(member.packed_size for member in targets)
    count = max(1, min(default_thread_count(), packed_size // SMALLEST_ROUND))
    in_rounds = {member for member in targets if is_native and member.encrypted and member.aes is None}
    side_by_side, one_by_one = MemberQueue(in_rounds), MemberQueue(targets.keys() - in_rounds)
    group: ThreadGroup[Extracted] = ThreadGroup()
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(ZipReader(path, secret))) for _ in range(count)]
        workers = [_Worker(path, targets, reader, Cipher(secret).keys, group, count) for reader in readers]
        yield from group.run([partial(worker.work, side_by_side, one_by_one) for worker in workers], progress)


def engine() -> str:
    """What decrypts here, for people."""
    if module := native():
        return f"C extension, {module.kernels()[0]} kernel, {default_thread_count()} threads"
    return "fast-zip-decryption; a C compiler, or mmfw's own wheel, makes it faster"


class MemberQueue:
    """Members that threads take: the largest first, then all others in the order of the archive.

    A large member occupies a single lane for long. Begun last, it would end when all others are idle; and a
    thread that took all of them would work on when the other threads have ended.
    """

    def __init__(self, members: Iterable[ZipMember]) -> None:
        in_order = sorted(members, key=lambda member: member.info.header_offset)
        large = [member for member in in_order if member.packed_size >= LARGE]
        self._large = deque(sorted(large, key=lambda member: -member.packed_size))
        self._others = deque(member for member in in_order if member.packed_size < LARGE)
        self._lock = Lock()
        self.left = sum(member.packed_size for member in in_order)

    def take(self, most: int | None = None) -> ZipMember | None:
        """The next member, a large one only if it has at most so many bytes; None when there is none."""
        with self._lock:
            if self._large and (most is None or self._large[0].packed_size <= most):
                member = self._large.popleft()
            elif self._others:
                member = self._others.popleft()
            else:
                return None
            self.left -= member.packed_size
            return member


@dataclass
class _Worker:
    """A thread's work: the members of the classic encryption in rounds, then all others one by one."""

    path: Path
    targets: Mapping[ZipMember, Path]
    reader: ZipReader
    keys: Keys
    group: ThreadGroup[Extracted]
    workers: int

    def work(self, side_by_side: MemberQueue, one_by_one: MemberQueue) -> None:
        """Extract until there is no more."""
        if side_by_side.left:
            self._decrypt_in_rounds(side_by_side)
        while (member := one_by_one.take()) is not None:
            content, progress = self.reader.content(member), self.group.advance
            self.group.report(write(self.path, member, self.targets[member], content, progress))

    def _decrypt_in_rounds(self, queue: MemberQueue) -> None:
        zipcrypto = native()
        assert zipcrypto is not None
        kernel = zipcrypto.kernels()[0]
        arena = bytearray(min(ARENA, queue.left + PIECE))
        view = memoryview(arena)
        in_hand: list[_Stream] = []
        try:
            while self._fill(in_hand, view, queue):
                by_size = sorted(in_hand, key=lambda stream: -stream.size)
                spans = [(stream.start, stream.size, stream.keys) for stream in by_size]
                for stream, keys in zip(by_size, zipcrypto.decrypt(arena, spans, kernel), strict=True):
                    stream.keys = keys
                for stream in in_hand:
                    stream.write(view[stream.start : stream.start + stream.size])
                in_hand = [stream for stream in in_hand if stream.left]
        finally:
            for stream in in_hand:
                stream.close()

    def _fill(self, in_hand: list[_Stream], view: memoryview, queue: MemberQueue) -> bool:
        """Read the next piece of each stream, and begin new ones while there is room; False at the end."""
        used = 0
        for stream in in_hand:
            used += stream.read(view, used)
        # Towards the end the rounds grow smaller, so that the threads end together.
        room = min(len(view), max(SMALLEST_ROUND, queue.left // (2 * self.workers)))
        while used + PIECE <= room and len(in_hand) < _MOST_IN_HAND:
            share = queue.left // self.workers - sum(stream.left for stream in in_hand)
            member = queue.take(share if in_hand else None)
            if member is None:
                break
            stream = _Stream(self, member)
            in_hand.append(stream)
            used += stream.read(view, used)
        return bool(in_hand)


class _Stream:
    """A member on its way through the rounds of one thread."""

    def __init__(self, worker: _Worker, member: ZipMember) -> None:
        self._worker, self._member = worker, member
        self._offset = worker.reader.data_offset(member)
        self._output: Output | None = None
        self._decoder = Decoder(worker.path, member)
        self.keys = worker.keys
        self.left = member.packed_size
        self.start = self.size = 0

    def read(self, view: memoryview, start: int) -> int:
        """Read the next piece to ``start`` and return its size."""
        self.start, self.size = start, min(self.left, PIECE)
        self._worker.reader.read_at(self._member, self._offset, view[start : start + self.size])
        self._offset += self.size
        self.left -= self.size
        return self.size

    def write(self, plain: memoryview) -> None:
        """Write the piece, now decrypted; the last one ends the member."""
        worker, member = self._worker, self._member
        if self._output is None:
            worker.reader.check_header(member, plain)
            plain = plain[HEADER_SIZE:]
            self._output = Output(worker.path, member, worker.targets[member], worker.group.advance)
        for block in self._decoder.feed(plain):
            self._output.write(block)
        if not self.left:
            worker.group.report(self._output.finish())

    def close(self) -> None:
        """Let go of the file, which is removed unless it is complete."""
        if self._output is not None:
            self._output.close()
