"""What an unfinished step has verified so far, so that the next start can go on from there.

One JSON object a line, written after the file was written and verified. A torn last line is ignored, and no
file is believed before its size and checksum were compared again: the system may have died, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from mmf_win.archives import Extracted
from mmf_win.console import Progress
from mmf_win.crc import crc32
from mmf_win.integrity import file_digest

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A verified file.

    Attributes:
        name: path below the folder of the step, with ``/``.
        size: bytes.
        crc32: checksum.
        sha256: a better one, where the step makes it.
    """

    name: str
    size: int
    crc32: int
    sha256: str | None = None


class Journal:
    """A journal opened for reading and appending; a context manager.

    Args:
        path: the journal; made when there is none.
        root: the folder of the step's files.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self._root = root
        self._entries = {entry.name: entry for entry in _read(path)}
        self._file = path.open("a", encoding="utf-8", newline="\n")
        self._file.write("\n")  # after a torn line, the next one begins anew

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def note(self, done: Extracted) -> None:
        """A file below the root is written and verified."""
        name = done.target.relative_to(self._root).as_posix()
        self._file.write(json.dumps(asdict(Entry(name, done.size, done.crc32, done.sha256))) + "\n")
        self._file.flush()

    def still_good(self, names: Iterable[str] | None = None) -> list[Entry]:
        """Those of the files ``names``, or of all, that were verified and are still what they were then."""
        names = self._entries if names is None else names
        noted = [self._entries[name] for name in names if name in self._entries]
        if not noted:
            return []
        with Progress("Checking what was done before", sum(entry.size for entry in noted)) as bar:
            return [entry for entry in noted if self._is_good(entry, bar)]

    def _is_good(self, entry: Entry, bar: Progress) -> bool:
        path = self._root / entry.name
        try:
            if path.stat().st_size != entry.size:
                return False
            if entry.sha256 is not None:
                return file_digest(path, progress=bar.advance).hex() == entry.sha256
            return _crc32(path, bar) == entry.crc32
        except OSError:
            return False


def _crc32(path: Path, bar: Progress) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            crc = crc32(block, crc)
            bar.advance(len(block))
    return crc


def _read(path: Path) -> Iterable[Entry]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            value = json.loads(line)
            yield Entry(str(value["name"]), int(value["size"]), int(value["crc32"]), value.get("sha256"))
        except (ValueError, TypeError, KeyError):
            continue
