"""Files on their way to their place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mmf_win.errors import UnfinishedInstallation, UsageError
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


def test_an_installation_that_can_neither_go_on_nor_back_is_believed_by_nobody_and_ended_later(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where somebody may have one of the files open."""
    root = lay_out({"a": b"old a", "b": b"old b"}, user_dir / "root")
    rename, is_held = staging.rename, False

    def held(old: Path, new: Path) -> None:
        nonlocal is_held
        is_held = is_held or old == root / "b"
        if is_held:
            raise PermissionError(13, "held", str(old))
        rename(old, new)

    monkeypatch.setattr(staging, "rename", held)
    with pytest.raises(PermissionError), staging.staging(root) as here:
        lay_out({"a": b"new a", "b": b"new b"}, here.new)
        here.install([(here.new / name, root / name) for name in "ab"])
    with pytest.raises(UnfinishedInstallation):
        staging.require_finished(root)
    monkeypatch.setattr(staging, "rename", rename)
    staging.finish_installation(root)
    staging.require_finished(root)
    assert [(root / name).read_bytes() for name in "ab"] == [b"new a", b"new b"]
    assert not staging.staging_folder(root).exists()


def test_nothing_is_put_into_a_folder_that_others_read(user_dir: Path) -> None:
    root = lay_out({"a": b"old"}, user_dir / "root")
    reading = staging.reading(root)
    with (
        reading,
        staging.reading(root),
        pytest.raises(UsageError, match="at work here"),
        staging.staging(root),
    ):
        pass
    with staging.staging(root), pytest.raises(UsageError, match="at work here"), staging.reading(root):
        pass
    with staging.reading(user_dir / "nothing"):
        assert not (user_dir / "nothing").exists()
