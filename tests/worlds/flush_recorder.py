"""A record of which files were flushed to the disk before they took their place."""

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
    """A file or folder that took its place.

    Attributes:
        is_flushed: every byte of it was flushed before.
    """

    source: Path
    target: Path
    is_flushed: bool


class FlushRecorder:
    """The order of flushes and renames, recorded in this process.

    A file is known by its id, not by its name, so it stays flushed under another name or a hard link. A file
    that has grown since it was flushed counts as not flushed. ``syncfs`` is not recorded, which the product
    calls for more than eight files at once; see ``forbid_syncfs``.
    """

    def __init__(self, exit_stack: ExitStack) -> None:
        self.renames: list[Rename] = []
        self._exit_stack = exit_stack
        self._sizes: dict[tuple[int, int], int] = {}

    def is_flushed(self, path: Path) -> bool:
        """Return whether a file, or every file below a folder, is flushed as it is now."""
        if path.is_dir():
            return all(self.is_flushed(entry) for entry in path.iterdir())
        state = path.stat()
        return self._sizes.get((state.st_dev, state.st_ino)) == state.st_size

    def find_unflushed(self, folder: Path) -> list[Path]:
        """Return the files below a folder that are not flushed as they are now."""
        return [path for path in folder.rglob("*") if path.is_file() and not self.is_flushed(path)]

    def renames_to(self, target: Path) -> list[Rename]:
        """Return what took the place of ``target``, in order."""
        return [rename for rename in self.renames if rename.target == target]

    def add_flush(self, descriptor: int) -> None:
        """Record that the file behind a descriptor is on the disk."""
        if sys.platform != "win32":  # a file that stays open keeps its id; Windows could not rename it
            self._exit_stack.callback(os.close, os.dup(descriptor))
        state = os.fstat(descriptor)
        self._sizes[state.st_dev, state.st_ino] = state.st_size

    def add_rename(self, source: Path, target: Path) -> None:
        """Record that a file or folder is about to take its place."""
        self.renames.append(Rename(source, target, self.is_flushed(source)))


def forbid_syncfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system be one that flushes one file at a time."""
    without = SimpleNamespace(syncfs=lambda descriptor: -1)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: without)


@contextmanager
def record_flushes(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlushRecorder]:
    """Record each ``os.fsync``, ``os.rename`` and ``os.replace``, those of ``pathlib`` included."""
    with ExitStack() as held:
        flushes = FlushRecorder(held)
        fsync = os.fsync

        def flush(descriptor: int) -> None:
            fsync(descriptor)
            flushes.add_flush(descriptor)

        monkeypatch.setattr(os, "fsync", flush)
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, renaming := _record_renames(getattr(os, name), flushes))
            # Python 3.10 keeps the function of os that was there when pathlib was imported.
            monkeypatch.setattr(Path, name, _as_path_method(renaming))
        yield flushes


def _record_renames(rename: Callable[..., None], flushes: FlushRecorder) -> Callable[..., None]:
    def renaming(source: Any, target: Any, **options: Any) -> None:
        if Path(source).exists():
            flushes.add_rename(Path(source), Path(target))
        rename(source, target, **options)

    return renaming


def _as_path_method(rename: Callable[..., None]) -> Callable[[Path, Any], Path]:
    def renaming(path: Path, target: Any) -> Path:
        rename(path, target)
        return Path(target)

    return renaming
