"""7z archives, decoded in child processes, since damaged data may crash py7zr's native decoders."""

from __future__ import annotations

import atexit
import json
import os
import signal
import struct
import subprocess
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from errno import EINVAL
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from mmf_win.archives.base import (
    Archive,
    ExtractedFile,
    Member,
    PasswordCallback,
    TargetChooser,
    unsupported_error,
    write_member,
    wrong_password_error,
)
from mmf_win.errors import ArchiveError, PasswordRequiredError
from mmf_win.machine import default_thread_count
from mmf_win.paths import module_command
from mmf_win.threads import AdvanceCallback, ThreadGroup, partition_by_size

#: Header of each part of an answer: whether it is the last part, and its size in bytes.
PART_HEADER = struct.Struct("<?I")

#: Minimum size in bytes that is worth another decoder, which has to start and derive the key again.
MIN_SHARE_BYTES = 32 << 20
_INTERRUPT_EXIT_CODES = (-signal.SIGINT, 0xC000013A)  # https://learn.microsoft.com/windows/win32/debug/ntstatus-values

_idle_decoders: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class SevenZipMember(Member):
    """A file in a 7z archive.

    Attributes:
        number: Its index in the archive.
        stream: ID of the compressed stream that contains it, or None if the file is empty.
    """

    number: int = field(kw_only=True)
    stream: int | None = field(kw_only=True)


class SevenZipArchive(Archive):
    """A 7z file. Members may share a compressed stream, which can only be read from its beginning.

    Members of different streams are extracted in parallel.
    """

    def __init__(self, path: Path, ask: PasswordCallback | None = None) -> None:
        super().__init__(path, ask)
        try:
            entries = self._list_members()
        except PasswordRequiredError:  # even the list of members is encrypted
            self._require_password()
            try:
                entries = self._list_members()
            except ArchiveError:
                raise wrong_password_error(path) from None
        self._require_member_limit(len(entries))
        self.members: Sequence[SevenZipMember] = self._mark_name_problems(
            SevenZipMember(**entry | {"name": self._safe_name(entry["name"])}) for entry in entries
        )

    def _list_members(self) -> Any:
        return json.loads(b"".join(self._decode()))

    def _is_password_correct(self) -> bool:
        # Only the first member of a stream can be read cheaply.
        first_members = {m.stream: m for m in reversed(self.members) if m.encrypted and not m.problem}
        if not first_members:  # no encrypted member will be extracted
            return True
        cheapest = min(first_members.values(), key=lambda member: member.size)
        return self._is_intact(cheapest, self._decode([cheapest.number]))

    def _extract(self, choose: TargetChooser, progress: AdvanceCallback) -> Generator[ExtractedFile, None, None]:
        targets = self._select_targets(self.members, choose)
        by_stream: dict[int | None, list[SevenZipMember]] = defaultdict(list)
        for member in targets:
            by_stream[member.stream].append(member)
        count = max(1, min(default_thread_count(), sum(member.size for member in targets) // MIN_SHARE_BYTES))
        shares = partition_by_size(by_stream.values(), count, lambda members: sum(m.size for m in members))
        group: ThreadGroup[ExtractedFile] = ThreadGroup()
        jobs = [partial(self._extract_share, list(chain(*share)), targets, group) for share in shares]
        yield from group.run(jobs, progress)

    def _extract_share(
        self, share: list[SevenZipMember], targets: Mapping[SevenZipMember, Path], group: ThreadGroup[ExtractedFile]
    ) -> None:
        """Extract the members assigned to one thread."""
        share.sort(key=lambda member: member.number)
        with closing(self._decode([member.number for member in share])) as blocks:
            for member in share:
                content = _take_bytes(member.size, blocks)
                group.report(write_member(self.path, member, targets[member], content, group.advance))
            for _ in blocks:  # reads the end of the answer
                pass

    def _decode(self, numbers: Sequence[int] | None = None) -> Generator[bytes, None, None]:
        """Yield a decoder's answer: the content of members one after another, or the list of all."""
        path = os.fsencode(self.path.absolute()).hex()
        request = {"path": path, "password": self._password, "numbers": numbers}
        is_last, decoder = False, _get_decoder()
        assert decoder.stdin and decoder.stdout
        try:
            with suppress(OSError):  # if the decoder has ended, its missing answer shows that
                decoder.stdin.write(json.dumps(request).encode() + b"\n")
                decoder.stdin.flush()
            while header := decoder.stdout.read(PART_HEADER.size):
                is_last, size = PART_HEADER.unpack(header)
                content = decoder.stdout.read(size)
                if is_last:
                    break
                yield content
        finally:
            if is_last:
                _idle_decoders.append(decoder)
            else:
                _kill_decoder(decoder)
        if not is_last:
            if decoder.returncode in _INTERRUPT_EXIT_CODES:
                raise KeyboardInterrupt
            raise self._damaged_error(f"decoder failed (exit code {decoder.returncode})")
        kind, text, errno = json.loads(content)
        if kind == "PasswordRequired":
            raise PasswordRequiredError(f"{self.path}: {text}")
        if kind in ("NotImplementedError", "UnsupportedCompressionMethodError"):
            raise unsupported_error(self.path, text)
        if kind == "MemoryError":
            raise MemoryError(text)
        if errno not in (None, EINVAL):  # EINVAL: a damaged offset is too large to seek to
            raise OSError(errno, text, str(self.path))
        if kind is not None:
            raise self._damaged_error(f"{'not a valid 7z' if numbers is None else 'damaged'}: {text}")


def _take_bytes(size: int, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the next blocks until they contain ``size`` bytes, or until there are no more blocks.

    Blocks need not be split, because the decoder begins a new block with each member.
    """
    while size > 0 and (block := next(blocks, None)) is not None:
        size -= len(block)
        yield block


def _get_decoder() -> subprocess.Popen[bytes]:
    """Return an idle decoder, or start one; an idle one needs no start and remembers derived keys."""
    while _idle_decoders:
        decoder = _idle_decoders.pop()
        if decoder.poll() is None:
            return decoder
        _kill_decoder(decoder)
    command = module_command("mmf_win.archives.sevenzip_decoder")
    # On Windows, a process's working directory cannot be removed, so it must not be the user's.
    pipe, package_dir = subprocess.PIPE, Path(__file__).parent
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd=package_dir)


def _kill_decoder(decoder: subprocess.Popen[bytes]) -> None:
    """Kill a decoder if it is still running."""
    decoder.kill()
    with suppress(OSError), decoder:  # an unread request cannot be flushed
        pass


@atexit.register
def _kill_idle_decoders() -> None:
    while _idle_decoders:
        _kill_decoder(_idle_decoders.pop())
