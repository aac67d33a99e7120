"""What an extraction writes, seen through the journal that it keeps."""

from __future__ import annotations

import pytest

from mmf_win.archives import Extracted
from mmf_win.unpacking.reading import Journal


def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are written from now on."""
    names: list[str] = []
    note = Journal.note

    def noting(self: Journal, done: Extracted) -> None:
        names.append(done.target.name)
        note(self, done)

    monkeypatch.setattr(Journal, "note", noting)
    return names
