"""What an unfinished step has verified so far, so that the next start can resume from there.

One JSON object a line, written after the file was written and verified. A torn last line is ignored, and no
file is believed before its size and hash were compared again: the system may have died, too.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from pathlib import Path

from mmf_win.archives import Extracted
from mmf_win.integrity.manifest import Entry, Manifest
from mmf_win.integrity.verify import verify


class Journal:
    """A journal opened for reading and appending.

    Args:
        path: the journal; made when there is none.
        root: the folder of the step's files.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self._root = root
        self._entries = dict(_read(path))
        self._file = path.open("a", encoding="utf-8", newline="\n")
        self._file.write("\n")  # after a torn line, the next one begins anew

    def note(self, done: Extracted) -> None:
        """A file below the root is written and verified."""
        name = done.target.relative_to(self._root).as_posix()
        self._file.write(json.dumps({"name": name, "size": done.size, "sha256": done.sha256}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def intact(self, names: Container[str] | None = None) -> dict[str, Entry]:
        """Those of the files ``names``, or of all, that were verified and have not changed since."""
        noted = {name: e for name, e in self._entries.items() if names is None or name in names}
        found = verify(Manifest(self._root, noted), title="Checking what was done before")
        wrong = {difference.path for difference in found}
        return {name: entry for name, entry in noted.items() if name not in wrong}


def _read(path: Path) -> Iterable[tuple[str, Entry]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            value = json.loads(line)
            yield str(value["name"]), Entry(str(value["sha256"]), int(value["size"]))
        except (ValueError, TypeError, KeyError):
            continue
