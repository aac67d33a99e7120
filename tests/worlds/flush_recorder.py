"""Record of the files that were flushed to the disk before they were renamed."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


@dataclass(frozen=True)
class Rename:
    """Rename of a file or folder.

    Attributes:
        is_flushed: Whether all its bytes were flushed before.
    """

    source: Path
    target: Path
    is_flushed: bool


class FlushRecorder:
    """Recorder of the order of flushes and renames in this process.

    Files are identified by their ids, not by their names: a renamed file or a hard link to it stays flushed. A file
    that has grown since its flush counts as not flushed. ``syncfs``, which mmfw calls for more than eight files at
    once, is not recorded; see ``forbid_syncfs``.
    """

    def __init__(self, exit_stack: ExitStack) -> None:
        self.renames: list[Rename] = []
        self._exit_stack = exit_stack
        self._sizes: dict[tuple[int, int], int] = {}

    def is_flushed(self, path: Path) -> bool:
        """Return whether the current content of a file, or of all files below a folder, is flushed."""
        if path.is_dir():
            return all(self.is_flushed(entry) for entry in path.iterdir())
        state = path.stat()
        return self._sizes.get((state.st_dev, state.st_ino)) == state.st_size

    def find_unflushed(self, folder: Path) -> list[Path]:
        """Return the files below a folder whose current content is not flushed."""
        return [path for path in folder.rglob("*") if path.is_file() and not self.is_flushed(path)]

    def renames_to(self, target: Path) -> list[Rename]:
        """Return the renames to ``target``, in order."""
        return [rename for rename in self.renames if rename.target == target]

    def add_flush(self, descriptor: int) -> None:
        """Record that the file of a descriptor was flushed."""
        if sys.platform != "win32":  # an open file keeps its id; Windows could not rename it
            self._exit_stack.callback(os.close, os.dup(descriptor))
        state = os.fstat(descriptor)
        self._sizes[state.st_dev, state.st_ino] = state.st_size

    def add_rename(self, source: Path, target: Path) -> None:
        """Record that a file or folder is about to be renamed."""
        self.renames.append(Rename(source, target, self.is_flushed(source)))


def forbid_syncfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``syncfs`` fail, so that mmfw flushes one file at a time."""
    library = SimpleNamespace(syncfs=lambda descriptor: -1)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: library)


@contextmanager
def record_flushes(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlushRecorder]:
    """Record calls of ``os.fsync``, ``os.rename`` and ``os.replace``, including those by ``pathlib``."""
    with ExitStack() as exit_stack:
        recorder = FlushRecorder(exit_stack)
        fsync = os.fsync

        def flush(descriptor: int) -> None:
            fsync(descriptor)
            recorder.add_flush(descriptor)

        monkeypatch.setattr(os, "fsync", flush)
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, recording_rename := _record_renames(getattr(os, name), recorder))
            # In Python 3.10, pathlib keeps the function of os from the time of its import.
            monkeypatch.setattr(Path, name, _as_path_method(recording_rename))
        yield recorder


def _record_renames(rename: Callable[..., None], recorder: FlushRecorder) -> Callable[..., None]:
    def recording_rename(source: Any, target: Any, **options: Any) -> None:
        if Path(source).exists():
            recorder.add_rename(Path(source), Path(target))
        rename(source, target, **options)

    return recording_rename


def _as_path_method(rename: Callable[..., None]) -> Callable[[Path, Any], Path]:
    def rename_path(path: Path, target: Any) -> Path:
        rename(path, target)
        return Path(target)

    return rename_path
