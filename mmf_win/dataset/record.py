"""The note that a finished step leaves beside its files: where they came from, and how large each is.

It is written last, so that files without it were not finished by us.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmf_win.console import Progress
from mmf_win.files import read_json, write_json
from mmf_win.integrity import file_digest

_FORMAT = 1


@dataclass(frozen=True)
class Source:
    """By what an archive or folder is recognised.

    Attributes:
        name: without its folder.
        size: bytes, of all files in the case of a folder.
        mtime_ns: last change in nanoseconds, the newest in the case of a folder.
        sha256: of an archive; None for a folder.
    """

    name: str
    size: int
    mtime_ns: int
    sha256: str | None = None

    @classmethod
    def of(cls, path: Path, sha256: str | None = None) -> Source:
        """The archive or folder at ``path``, without reading its content."""
        if path.is_dir():
            files = [Path(here, name).stat() for here, _, names in os.walk(path) for name in names]
        else:
            files = [path.stat()]
        newest = max((file.st_mtime_ns for file in files), default=0)
        return cls(path.name, sum(file.st_size for file in files), newest, sha256)

    def is_same(self, path: Path) -> bool:
        """Whether ``path`` is this; a file that may only have been touched or copied is hashed to know."""
        if not path.exists() or (now := Source.of(path)).size != self.size:
            return False
        if now.mtime_ns == self.mtime_ns:
            return True
        if self.sha256 is None or path.is_dir():
            return False
        with Progress("Comparing", now.size) as bar:
            return file_digest(path, progress=bar.advance).hex() == self.sha256


@dataclass(frozen=True)
class Record:
    """A finished step.

    Attributes:
        source: what the files were made of.
        files: path below the record's folder, with ``/`` → bytes.
        result: what the step wants to remember.
        format: of this record; another one is not understood.
    """

    source: Source
    files: Mapping[str, int]
    result: Mapping[str, Any]
    format: int = _FORMAT

    @classmethod
    def load(cls, path: Path) -> Record | None:
        """The record at ``path``; None when there is none that can be understood."""
        try:
            value = read_json(path)
            if value["format"] != _FORMAT:
                return None
            return cls(Source(**value["source"]), dict(value["files"]), dict(value["result"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def save(self, path: Path) -> None:
        """Write the record as JSON."""
        write_json(path, asdict(self))

    def broken_files(self, root: Path) -> list[str]:
        """The files that are gone or have another size."""
        sizes: dict[str, int] = {}
        for folder in {name.rpartition("/")[0] for name in self.files}:
            sizes.update(_sizes(root, folder))
        return [name for name, size in self.files.items() if sizes.get(name) != size]


def _sizes(root: Path, folder: str) -> dict[str, int]:
    """The files of one folder. One listing is far faster than asking for thousands of files by name."""
    try:
        with os.scandir(root / folder) as entries:
            return {f"{folder}/{e.name}" if folder else e.name: e.stat().st_size for e in entries}
    except OSError:
        return {}
