"""Files that an extraction writes, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from mmf_win.archives import Archive, ExtractedFile


def on_each_written_file(monkeypatch: pytest.MonkeyPatch, callback: Callable[[ExtractedFile], None]) -> None:
    """Call ``see`` for each file that an extraction has written, before that goes on."""
    extract = Archive.extract

    def extract_and_report(*arguments: Any) -> Iterator[ExtractedFile]:
        with closing(extract(*arguments)) as written:
            for done in written:
                callback(done)
                yield done

    monkeypatch.setattr(Archive, "extract", extract_and_report)


def record_written_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are written from now on."""
    names: list[str] = []
    on_each_written_file(monkeypatch, lambda done: names.append(done.target.name))
    return names


def interrupt_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl+C when so many files, and one more, are complete."""
    left = [count]

    def interrupt(_: ExtractedFile) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1

    on_each_written_file(monkeypatch, interrupt)
