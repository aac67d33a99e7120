"""What an extraction writes, file by file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from mmf_win.archives import Archive, ExtractedFile


def each_written(monkeypatch: pytest.MonkeyPatch, see: Callable[[ExtractedFile], None]) -> None:
    """Call ``see`` for each file that an extraction has written, before that goes on."""
    extract = Archive.extract

    def seen(*arguments: Any) -> Iterator[ExtractedFile]:
        with closing(extract(*arguments)) as written:
            for done in written:
                see(done)
                yield done

    monkeypatch.setattr(Archive, "extract", seen)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are written from now on."""
    names: list[str] = []
    each_written(monkeypatch, lambda done: names.append(done.target.name))
    return names


def interrupt_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl+C when so many files, and one more, are complete."""
    left = [count]

    def interrupt(_: ExtractedFile) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1

    each_written(monkeypatch, interrupt)
