"""Verification against a manifest: fast, and not misled by timestamps."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.manifest import MANIFEST_NAME, Manifest, ManifestSource, manifest_files
from mmf_win.integrity.verify import LOCK_NAME, FileProblem, find_damage, hash_files, oldest_check_time, record_hashes
from mmf_win.locking import file_lock
from mmf_win.threads import AdvanceCallback
from tests.worlds import hostile_archives
from tests.worlds.memes import Files, write_tree
from tests.worlds.mounts import remount

FILES: Files = {"detectron.lmdb/data.mdb": bytes(range(256)) * 40, "с пробелом/文件.txt": b"x", "empty": b""}
DATA = "detectron.lmdb/data.mdb"
LONG_AGO = 1_600_000_000_000_000_000
SECOND = 1_000_000_000
DAY = 86_400 * SECOND


@pytest.fixture
def folder(user_dir: Path) -> Path:
    """Return a folder without a manifest whose files were last changed long ago."""
    return set_mtimes(write_tree(FILES, user_dir / "files"), LONG_AGO)


@pytest.fixture
def recorded(folder: Path) -> Manifest:
    """Return the manifest of these files."""
    return record_hashes(folder, FILES)


@pytest.fixture
def read(recorded: Manifest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of the files that :func:`find_damage` read after they were recorded."""
    names: list[str] = []

    def record_and_hash(files: Mapping[str, Path], sizes: Mapping[str, int], title: str) -> Iterator[object]:
        names.extend(files)
        return hash_files(files, sizes, title)

    monkeypatch.setattr(importlib.import_module("mmf_win.integrity.verify"), "hash_files", record_and_hash)
    return names


def set_mtimes(folder: Path, mtime_ns: int) -> Path:
    """Set the mtime of all files in ``folder``."""
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, ns=(mtime_ns, mtime_ns))
    return folder


def load_manifest(folder: Path) -> Manifest:
    """Load the manifest like a later process."""
    manifest = Manifest.load(folder)
    assert manifest is not None
    return manifest


def flip(path: Path) -> None:
    """Change one byte in place and restore the mtime."""
    before = path.stat()
    with path.open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def wait_for_next_timestamp(folder: Path) -> None:
    """Wait until a new change would get a later timestamp than all changes so far."""
    probe = folder.with_name("probe")
    probe.touch()
    first = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == first:
        probe.chmod(0o600)


def test_only_a_full_check_reads_untouched_files(folder: Path, read: list[str]) -> None:
    assert find_damage(load_manifest(folder)) == []
    assert read == []
    assert find_damage(load_manifest(folder), full=True) == []
    assert sorted(read) == sorted(FILES)


def test_problems_are_in_the_order_of_the_manifest(folder: Path, recorded: Manifest, read: list[str]) -> None:
    (folder / "empty").unlink()
    hostile_archives.truncate_file(folder / DATA)
    (folder / "с пробелом/文件.txt").write_bytes(b"y")
    assert find_damage(recorded) == [
        FileProblem("changed", DATA, "5120 instead of 10240 bytes"),
        FileProblem("missing", "empty"),
        FileProblem("changed", "с пробелом/文件.txt", "different content"),
    ]
    assert read == ["с пробелом/文件.txt"]  # the sizes of the others already differ


@pytest.mark.skipif(sys.platform != "linux", reason="Windows has no /proc")
def test_unreadable_file_is_reported(folder: Path, recorded: Manifest) -> None:
    (folder / "empty").unlink()
    (folder / "empty").symlink_to("/proc/self/mem")  # has no size and cannot be read
    assert [(d.kind, d.path) for d in find_damage(recorded)] == [("unreadable", "empty")]


def test_only_requested_files_are_verified(folder: Path, recorded: Manifest) -> None:
    (folder / "empty").unlink()
    (folder / "empty").mkdir()  # a folder instead of a file
    assert find_damage(recorded, only_files=[DATA]) == []
    assert find_damage(recorded, only_files=["empty"]) == [FileProblem("missing", "empty")]


def test_touched_file_is_read_once(folder: Path, read: list[str]) -> None:
    os.utime(folder / DATA, ns=(LONG_AGO, LONG_AGO + SECOND))
    for _ in range(2):
        assert find_damage(load_manifest(folder)) == []
    assert read == [DATA]


def test_damaged_file_is_read_until_it_is_intact(folder: Path, read: list[str]) -> None:
    content = (folder / DATA).read_bytes()
    hostile_archives.flip_byte(folder / DATA, 5000)
    for _ in range(2):
        assert find_damage(load_manifest(folder)) == [FileProblem("changed", DATA, "different content")]
    (folder / DATA).write_bytes(content)
    assert find_damage(load_manifest(folder)) == []
    assert read == [DATA] * 3


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no change time")
def test_flipped_byte_is_found_despite_a_restored_mtime(folder: Path, recorded: Manifest) -> None:
    wait_for_next_timestamp(folder)
    flip(folder / DATA)
    assert find_damage(load_manifest(folder)) == [FileProblem("changed", DATA, "different content")]


def test_full_check_finds_a_flipped_byte_on_every_system(folder: Path, recorded: Manifest) -> None:
    flip(folder / DATA)
    assert find_damage(load_manifest(folder), full=True) == [FileProblem("changed", DATA, "different content")]


def test_replaced_file_with_equal_size_and_mtime_is_found(folder: Path, recorded: Manifest) -> None:
    stamp = recorded.stamps[DATA]
    other = folder / "other"
    other.write_bytes((folder / DATA).read_bytes())
    flip(other)
    os.utime(other, ns=(LONG_AGO, LONG_AGO))
    other.replace(folder / DATA)
    now = (folder / DATA).stat()
    assert (now.st_size, now.st_mtime_ns) == (stamp.size, stamp.mtime_ns)
    assert find_damage(load_manifest(folder)) == [FileProblem("changed", DATA, "different content")]


@pytest.mark.parametrize("later", [0, DAY])
def test_mtime_close_to_or_after_the_check_is_not_trusted(later: int, folder: Path, read: list[str]) -> None:
    set_mtimes(folder, time.time_ns() + later)  # with a coarse clock, a later change may have the same time
    record_hashes(folder, FILES)
    read.clear()
    assert find_damage(load_manifest(folder)) == []
    assert sorted(read) == sorted(FILES)


def test_check_with_a_time_in_the_future_is_not_trusted(
    folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = time.time_ns() + DAY
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: ahead)
        record_hashes(folder, FILES)
        read.clear()
    for _ in range(2):
        assert find_damage(load_manifest(folder)) == []
    assert sorted(read) == sorted(FILES)  # once: the second check had the correct time


def test_oldest_check_time_is_returned(folder: Path, recorded: Manifest) -> None:
    checked = oldest_check_time(load_manifest(folder))
    assert checked == min(stamp.checked_ns for stamp in recorded.stamps.values()) / 1e9
    recorded.stamps[DATA] = replace(recorded.stamps[DATA], checked_ns=LONG_AGO + DAY)
    assert oldest_check_time(recorded) == (LONG_AGO + DAY) / 1e9
    os.utime(folder / DATA, ns=(LONG_AGO, LONG_AGO + SECOND))
    assert oldest_check_time(recorded) is None


def test_read_only_folder_is_verified_without_saving_stamps(small_disk: Path, read: list[str]) -> None:
    folder = set_mtimes(write_tree(FILES, small_disk / "files"), LONG_AGO)
    record_hashes(folder, FILES)
    read.clear()
    notes = manifest_files(folder)[1]
    notes.unlink()
    remount(small_disk, "ro")
    for _ in range(2):
        assert find_damage(load_manifest(folder)) == []
    assert sorted(read) == sorted([*FILES, *FILES])
    assert {path.name for path in folder.iterdir()} == {MANIFEST_NAME, "detectron.lmdb", "empty", "с пробелом"}


def test_stamps_are_not_saved_while_the_folder_is_locked(folder: Path, read: list[str]) -> None:
    os.utime(folder / DATA, ns=(LONG_AGO, LONG_AGO + SECOND))
    with file_lock(folder / LOCK_NAME):
        assert find_damage(load_manifest(folder)) == []
    assert find_damage(load_manifest(folder)) == []
    assert find_damage(load_manifest(folder)) == []
    assert read == [DATA, DATA]


def test_file_changed_while_being_read_is_read_again(
    folder: Path, recorded: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(folder / DATA, ns=(LONG_AGO, LONG_AGO + SECOND))

    def read_and_change(path: Path, progress: AdvanceCallback) -> bytes:
        digest = file_digest(path, progress)
        hostile_archives.flip_byte(path, 5000)
        os.utime(path, ns=(LONG_AGO, LONG_AGO + 2 * SECOND))
        return digest

    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("mmf_win.integrity.verify"), "file_digest", read_and_change)
        assert find_damage(load_manifest(folder)) == []
    assert find_damage(load_manifest(folder)) == [FileProblem("changed", DATA, "different content")]


def test_recording_a_missing_file_fails_and_writes_nothing(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        record_hashes(folder, [*FILES, "no such file"])
    assert Manifest.load(folder) is None


@pytest.mark.parametrize("damage", ["missing", "with a comment"])
def test_source_is_kept_for_a_changed_manifest(folder: Path, recorded: Manifest, damage: str) -> None:
    source = ManifestSource("own.tar.gz", 1, 2, "/elsewhere/own.tar.gz", "a" * 64)
    replace(recorded, hash_origin="archive", source=source).save()
    sums = folder / MANIFEST_NAME
    if damage == "missing":
        sums.unlink()
        record_hashes(folder, FILES)
    else:
        sums.write_text(f"# mine\n{sums.read_text(encoding='utf-8')}", encoding="utf-8", newline="\n")
        load_manifest(folder).save_stamps()
    manifest = load_manifest(folder)
    assert (manifest.source, manifest.hash_origin, manifest.was_changed) == (source, "recorded", True)
