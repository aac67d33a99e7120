"""The note that a finished step leaves beside its files: where they came from, and how large each is.

It is written last, so that files without it were not finished by us.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmf_win.files import read_json, write_json
from mmf_win.integrity import Source

_FORMAT = 1


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
