"""Repair of damaged files, and installations in progress."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from mmf_win.errors import ArchiveError, IncompleteInstallError, InUseError
from mmf_win.integrity.manifest import Manifest, ManifestEntry, ManifestSource
from mmf_win.integrity.verify import FileProblem, find_damage
from mmf_win.unpacking import staging
from mmf_win.unpacking.extract import extract_verified
from tests.unpacking.conftest import FILES, file_identities, write_tar_gz
from tests.worlds import hostile_archives
from tests.worlds.flush_recorder import FlushRecorder, forbid_syncfs
from tests.worlds.memes import read_tree, write_tree


def test_only_damaged_files_are_extracted_again(
    archive: Path, folder: Path, written_names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = extract_verified(archive, folder)
    before = file_identities(folder)
    hostile_archives.flip_byte(folder / "fc7_w.pkl", 100)
    (folder / "z/empty").unlink()
    problems = find_damage(manifest, full=True)
    assert [(problem.kind, problem.path) for problem in problems] == [("changed", "fc7_w.pkl"), ("missing", "z/empty")]
    written_names.clear()
    extract_verified(archive, folder)
    assert written_names == ["fc7_w.pkl", "empty"]
    assert read_tree(folder) == FILES
    after = file_identities(folder)
    kept = before.keys() - {"fc7_w.pkl", "z/empty"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    with monkeypatch.context() as patch:
        patch.setattr(import_module("mmf_win.integrity.verify"), "file_digest", None)
        loaded = Manifest.load(folder)
        assert loaded is not None and find_damage(loaded) == []
    assert find_damage(manifest, full=True) == []


def test_repaired_file_is_flushed_before_it_is_moved(
    archive: Path, folder: Path, flush_recorder: FlushRecorder
) -> None:
    extract_verified(archive, folder)
    hostile_archives.truncate_file(folder / "fc7_w.pkl")
    flush_recorder.renames.clear()
    extract_verified(archive, folder)
    (repaired,) = (rename for rename in flush_recorder.renames_to(folder / "fc7_w.pkl"))
    assert repaired.is_flushed


def test_wrong_recorded_size_is_repaired_by_extracting_again(archive: Path, folder: Path) -> None:
    manifest = extract_verified(archive, folder)
    name = "detectron.lmdb/data.mdb"
    replace(manifest, files={**manifest.files, name: ManifestEntry(manifest.files[name].sha256, 7)}).save_stamps()
    loaded = Manifest.load(folder)
    assert loaded is not None
    assert [(problem.kind, problem.path) for problem in find_damage(loaded)] == [("changed", name)]
    extract_verified(archive, folder)
    assert Manifest.load(folder) == manifest


@pytest.fixture
def source_always_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate an archive that changed but kept its size and mtime."""
    monkeypatch.setattr(ManifestSource, "is_same", lambda *_: True)


@pytest.mark.usefixtures("source_always_matches")
def test_archive_damaged_after_a_member_still_repairs_it(user_dir: Path, folder: Path) -> None:
    files = {"first": b"1" * 3000, "second": FILES["detectron.lmdb/data.mdb"]}
    path = write_tar_gz(user_dir / "a.tar.gz", files)
    extract_verified(path, folder)
    hostile_archives.truncate_file(folder / "first")
    extract_verified(hostile_archives.truncate_file(path), folder)
    assert read_tree(folder) == files


@pytest.mark.usefixtures("source_always_matches")
def test_different_archive_repairs_nothing(archive: Path, user_dir: Path, folder: Path) -> None:
    manifest = extract_verified(archive, folder)
    hostile_archives.truncate_file(folder / "fc7_w.pkl")
    before = read_tree(folder)
    other = write_tar_gz(user_dir / "other.tar.gz", {**FILES, "fc7_w.pkl": b"other"})
    with pytest.raises(ArchiveError, match=r"contains different content for fc7_w\.pkl"):
        extract_verified(other, folder)
    lacking = write_tar_gz(user_dir / "lacking.tar.gz", {"z/last": b""})
    with pytest.raises(ArchiveError, match=r"contains no fc7_w\.pkl"):
        extract_verified(lacking, folder)
    assert read_tree(folder) == before
    assert find_damage(manifest) == [FileProblem("changed", "fc7_w.pkl", "10000 instead of 20000 bytes")]


def test_each_file_is_flushed_without_syncfs(
    user_dir: Path, flush_recorder: FlushRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_syncfs(monkeypatch)
    folder = write_tree({f"{size}/x": bytes(size) for size in range(20)}, user_dir / "new")
    staging.fsync_files([file for file in folder.rglob("*") if file.is_file()])
    assert flush_recorder.find_unflushed(folder) == []


def test_stuck_installation_is_completed_later(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like on Windows if one of the files is open in another program."""
    root = write_tree({"a": b"old a", "b": b"old b"}, user_dir / "root")
    rename, is_locked = staging.rename, False

    def fail_when_locked(old: Path, new: Path) -> None:
        nonlocal is_locked
        is_locked = is_locked or old == root / "b"
        if is_locked:
            raise PermissionError(13, "locked", str(old))
        rename(old, new)

    monkeypatch.setattr(staging, "rename", fail_when_locked)
    with pytest.raises(PermissionError), staging.open_staging(root) as installation:
        write_tree({"a": b"new a", "b": b"new b"}, installation.new_dir)
        installation.install([(installation.new_dir / name, root / name) for name in "ab"])
    with pytest.raises(IncompleteInstallError):
        staging.require_complete_install(root)
    monkeypatch.setattr(staging, "rename", rename)
    staging.finish_installation(root)
    staging.require_complete_install(root)
    assert [(root / name).read_bytes() for name in "ab"] == [b"new a", b"new b"]
    assert not staging.staging_folder(root).exists()


def test_folder_in_use_by_readers_is_not_changed(user_dir: Path) -> None:
    root = write_tree({"a": b"old"}, user_dir / "root")
    reading = staging.shared_read_lock(root)
    with (
        reading,
        staging.shared_read_lock(root),
        pytest.raises(InUseError, match="in use by another mmfw process"),
        staging.open_staging(root),
    ):
        pass
    with (
        staging.open_staging(root),
        pytest.raises(InUseError, match="in use by another mmfw process"),
        staging.shared_read_lock(root),
    ):
        pass
    with staging.shared_read_lock(user_dir / "nothing"):
        assert not (user_dir / "nothing").exists()
