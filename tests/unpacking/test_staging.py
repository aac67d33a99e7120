"""Files on their way to their place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mmf_win.unpacking import staging
from tests.worlds.memes import lay_out


def test_where_the_system_cannot_write_a_whole_disk_each_file_is_flushed(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(staging, "_sync_disk_of", lambda path: False)
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_size))
    folder = lay_out({f"{size}/x": bytes(size) for size in range(20)}, user_dir / "new")
    staging.flush_all([file for file in folder.rglob("*") if file.is_file()])
    assert sorted(flushed) == list(range(20))
