"""Extraction of zip members on several threads, each of which decrypts many members in parallel.

Each thread works in rounds. It fills its arena with the next piece of each of its open members, decrypts all
these pieces in parallel (one SIMD lane per piece) and then inflates, checks and writes each piece. So the
memory needed is independent of the size of the archive and its members, and members of very different sizes
keep all lanes busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

from mmf_win.archives.base import ExtractedFile, MemberWriter, write_member
from mmf_win.archives.zip_reader import MemberDecoder, ZipMember, ZipReader
from mmf_win.archives.zipcrypto import ENCRYPTION_HEADER_SIZE, Cipher, Keys, load_extension
from mmf_win.machine import default_thread_count
from mmf_win.threads import AdvanceCallback, ThreadGroup

#: Size of a thread's buffer for decryption.
ARENA_BYTES = 16 << 20
# Not a multiple of 4096: otherwise all pieces would map to the same set of the CPU cache.
#: Bytes of a member that are read at a time.
PIECE_BYTES = (256 << 10) + 64
#: Minimum number of bytes that a thread processes per round.
MIN_ROUND_BYTES = 8 << 20
#: Packed size from which a member is processed before smaller ones.
LARGE_MEMBER_BYTES = 4 << 20
_MAX_OPEN_MEMBERS = 1024


def extract_zip_members(
    path: Path, secret: bytes, targets: Mapping[ZipMember, Path], progress: AdvanceCallback
) -> Generator[ExtractedFile, None, None]:
    """Write and verify members; see :meth:`mmf_win.archives.base.Archive.extract`."""
    is_native = load_extension() is not None
    packed_size = sum(member.packed_size for member in targets)
    count = max(1, min(default_thread_count(), packed_size // MIN_ROUND_BYTES))
    parallel_members = {member for member in targets if is_native and member.encrypted and member.aes is None}
    parallel_queue, sequential_queue = (MemberQueue(parallel_members), MemberQueue(targets.keys() - parallel_members))
    group: ThreadGroup[ExtractedFile] = ThreadGroup()
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(ZipReader(path, secret))) for _ in range(count)]
        workers = [_Worker(path, targets, reader, Cipher(secret).keys, group, count) for reader in readers]
        tasks = [partial(worker.extract_members, parallel_queue, sequential_queue) for worker in workers]
        yield from group.run(tasks, progress)


def decryption_engine() -> str:
    """Describe the implementation of ZipCrypto that is used on this machine."""
    if module := load_extension():
        return f"C extension, {module.kernels()[0]} kernel, {default_thread_count()} threads"
    return "fast-zip-decryption (faster with a C compiler or mmfw's own wheel)"


class MemberQueue:
    """Queue of members for all threads: the largest first, then all others in archive order.

    A large member occupies a single lane for a long time. Started last, it would finish while all other lanes
    are idle. A thread that took all large members would still be busy after the other threads have ended.
    """

    def __init__(self, members: Iterable[ZipMember]) -> None:
        in_order = sorted(members, key=lambda member: member.info.header_offset)
        large = [member for member in in_order if member.packed_size >= LARGE_MEMBER_BYTES]
        self._large_members = deque(sorted(large, key=lambda member: -member.packed_size))
        self._small_members = deque(member for member in in_order if member.packed_size < LARGE_MEMBER_BYTES)
        self._lock = Lock()
        self.remaining_bytes = sum(member.packed_size for member in in_order)

    def take(self, max_size: int | None = None) -> ZipMember | None:
        """Return the next member, or None; a large one only if its packed size is at most ``max_size``."""
        with self._lock:
            if self._large_members and (max_size is None or self._large_members[0].packed_size <= max_size):
                member = self._large_members.popleft()
            elif self._small_members:
                member = self._small_members.popleft()
            else:
                return None
            self.remaining_bytes -= member.packed_size
            return member


@dataclass
class _Worker:
    """Work of one thread: ZipCrypto members in rounds, then all others one by one."""

    path: Path
    targets: Mapping[ZipMember, Path]
    reader: ZipReader
    keys: Keys
    group: ThreadGroup[ExtractedFile]
    worker_count: int

    def extract_members(self, parallel_queue: MemberQueue, sequential_queue: MemberQueue) -> None:
        """Extract members until both queues are empty."""
        if parallel_queue.remaining_bytes:
            self._decrypt_in_rounds(parallel_queue)
        while (member := sequential_queue.take()) is not None:
            content, progress = self.reader.read_content(member), self.group.advance
            self.group.report(write_member(self.path, member, self.targets[member], content, progress))

    def _decrypt_in_rounds(self, queue: MemberQueue) -> None:
        zipcrypto = load_extension()
        assert zipcrypto is not None
        kernel = zipcrypto.kernels()[0]
        arena = bytearray(min(ARENA_BYTES, queue.remaining_bytes + PIECE_BYTES))
        view = memoryview(arena)
        streams: list[_MemberStream] = []
        try:
            while self._fill_arena(streams, view, queue):
                by_size = sorted(streams, key=lambda stream: -stream.piece_size)
                spans = [(stream.piece_start, stream.piece_size, stream.keys) for stream in by_size]
                for stream, keys in zip(by_size, zipcrypto.decrypt(arena, spans, kernel), strict=True):
                    stream.keys = keys
                for stream in streams:
                    stream.write_piece(view[stream.piece_start : stream.piece_start + stream.piece_size])
                streams = [stream for stream in streams if stream.remaining_bytes]
        finally:
            for stream in streams:
                stream.close()

    def _fill_arena(self, streams: list[_MemberStream], view: memoryview, queue: MemberQueue) -> bool:
        """Read the next piece of each stream and open new streams that fit; return whether any is open."""
        used = 0
        for stream in streams:
            used += stream.read_piece(view, used)
        # Rounds become smaller towards the end, so that all threads finish at about the same time.
        limit = min(len(view), max(MIN_ROUND_BYTES, queue.remaining_bytes // (2 * self.worker_count)))
        while used + PIECE_BYTES <= limit and len(streams) < _MAX_OPEN_MEMBERS:
            share = queue.remaining_bytes // self.worker_count - sum(stream.remaining_bytes for stream in streams)
            member = queue.take(share if streams else None)
            if member is None:
                break
            stream = _MemberStream(self, member)
            streams.append(stream)
            used += stream.read_piece(view, used)
        return bool(streams)


class _MemberStream:
    """An open member that is processed in the rounds of one thread."""

    def __init__(self, worker: _Worker, member: ZipMember) -> None:
        self._worker, self._member = worker, member
        self._offset = worker.reader.data_offset(member)
        self._output: MemberWriter | None = None
        self._decoder = MemberDecoder(worker.path, member)
        self.keys = worker.keys
        self.remaining_bytes = member.packed_size
        self.piece_start = self.piece_size = 0

    def read_piece(self, view: memoryview, start: int) -> int:
        """Read the next piece into ``view`` at ``start`` and return its size."""
        self.piece_start, self.piece_size = start, min(self.remaining_bytes, PIECE_BYTES)
        self._worker.reader.read_at(self._member, self._offset, view[start : start + self.piece_size])
        self._offset += self.piece_size
        self.remaining_bytes -= self.piece_size
        return self.piece_size

    def write_piece(self, plain: memoryview) -> None:
        """Write a decrypted piece; the last one completes the member."""
        worker, member = self._worker, self._member
        if self._output is None:
            worker.reader.require_matching_password(member, plain)
            plain = plain[ENCRYPTION_HEADER_SIZE:]
            self._output = MemberWriter(worker.path, member, worker.targets[member], worker.group.advance)
        for block in self._decoder.feed(plain):
            self._output.write(block)
        if not self.remaining_bytes:
            worker.group.report(self._output.finish())

    def close(self) -> None:
        """Close the file, which is removed unless it is complete."""
        if self._output is not None:
            self._output.close()
