"""Callbacks for the files that an extraction writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from mmf_win.archives import Archive, ExtractedFile


def on_each_written_file(monkeypatch: pytest.MonkeyPatch, callback: Callable[[ExtractedFile], None]) -> None:
    """Call ``callback`` for each file that an extraction has written, before the next file is written."""
    extract = Archive.extract

    def extract_and_report(*arguments: Any) -> Iterator[ExtractedFile]:
        with closing(extract(*arguments)) as files:
            for file in files:
                callback(file)
                yield file

    monkeypatch.setattr(Archive, "extract", extract_and_report)


def record_written_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the names of the files that extractions write from now on are appended."""
    names: list[str] = []
    on_each_written_file(monkeypatch, lambda file: names.append(file.target.name))
    return names


def interrupt_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise KeyboardInterrupt when ``count`` files and one more are complete."""
    remaining = [count]

    def interrupt(_: ExtractedFile) -> None:
        if not remaining[0]:
            raise KeyboardInterrupt
        remaining[0] -= 1

    on_each_written_file(monkeypatch, interrupt)
