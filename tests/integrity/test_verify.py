"""Files compared with their manifest: as fast as possible, and never fooled by a time."""

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
from mmf_win.integrity.verify import (
    LOCK_NAME,
    FileProblem,
    find_damage,
    hash_files,
    oldest_check_time,
    record_hashes,
)
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
    """Files that were last changed long ago, and no manifest."""
    return aged(write_tree(FILES, user_dir / "files"), LONG_AGO)


@pytest.fixture
def recorded(folder: Path) -> Manifest:
    """The manifest of these files."""
    return record_hashes(folder, FILES)


@pytest.fixture
def read(recorded: Manifest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that :func:`find_damage` has read since they were recorded."""
    names: list[str] = []

    def remembering(files: Mapping[str, Path], sizes: Mapping[str, int], title: str) -> Iterator[object]:
        names.extend(files)
        return hash_files(files, sizes, title)

    monkeypatch.setattr(importlib.import_module("mmf_win.integrity.verify"), "hash_files", remembering)
    return names


def aged(folder: Path, mtime_ns: int) -> Path:
    """``folder``, with all its files changed last at that time, as anybody can pretend."""
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, ns=(mtime_ns, mtime_ns))
    return folder


def loaded(folder: Path) -> Manifest:
    """What a later process knows."""
    manifest = Manifest.load(folder)
    assert manifest is not None
    return manifest


def flip(path: Path) -> None:
    """Change one byte in place, and put back the time of the last change."""
    before = path.stat()
    with path.open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def let_the_clock_of_files_tick(folder: Path) -> None:
    """Wait until a change would get another time than those that were made so far."""
    probe = folder.with_name("probe")
    probe.touch()
    first = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == first:
        probe.chmod(0o600)


def test_only_a_full_check_reads_files_that_nobody_touched(folder: Path, read: list[str]) -> None:
    assert find_damage(loaded(folder)) == []
    assert read == []
    assert find_damage(loaded(folder), full=True) == []
    assert sorted(read) == sorted(FILES)


def test_what_is_wrong_is_named_in_the_order_of_the_manifest(
    folder: Path, recorded: Manifest, read: list[str]
) -> None:
    (folder / "empty").unlink()
    hostile_archives.truncate_file(folder / DATA)
    (folder / "с пробелом/文件.txt").write_bytes(b"y")
    assert find_damage(recorded) == [
        FileProblem("changed", DATA, "5120 instead of 10240 bytes"),
        FileProblem("missing", "empty"),
        FileProblem("changed", "с пробелом/文件.txt", "other content"),
    ]
    assert read == ["с пробелом/文件.txt"]  # of the others the sizes tell enough


@pytest.mark.skipif(sys.platform != "linux", reason="Windows has no /proc")
def test_a_file_that_cannot_be_read_is_said_so(folder: Path, recorded: Manifest) -> None:
    (folder / "empty").unlink()
    (folder / "empty").symlink_to("/proc/self/mem")  # of no size, and its first page is never there
    assert [(d.kind, d.path) for d in find_damage(recorded)] == [("unreadable", "empty")]


def test_only_some_files_are_looked_at_when_only_these_are_wanted(folder: Path, recorded: Manifest) -> None:
    (folder / "empty").unlink()
    (folder / "empty").mkdir()  # a folder in the place of a file
    assert find_damage(recorded, only_files=[DATA]) == []
    assert find_damage(recorded, only_files=["empty"]) == [FileProblem("missing", "empty")]


def test_a_touched_file_is_read_once_more_and_then_trusted_again(folder: Path, read: list[str]) -> None:
    os.utime(folder / DATA, ns=(LONG_AGO, LONG_AGO + SECOND))
    for _ in range(2):
        assert find_damage(loaded(folder)) == []
    assert read == [DATA]


def test_what_was_wrong_is_read_again_until_it_is_right(folder: Path, read: list[str]) -> None:
    content = (folder / DATA).read_bytes()
    hostile_archives.flip_byte(folder / DATA, 5000)
    for _ in range(2):
        assert find_damage(loaded(folder)) == [FileProblem("changed", DATA, "other content")]
    (folder / DATA).write_bytes(content)
    assert find_damage(loaded(folder)) == []
    assert read == [DATA] * 3


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell when a file was touched")
def test_a_flipped_byte_is_found_although_its_time_was_put_back(folder: Path, recorded: Manifest) -> None:
    let_the_clock_of_files_tick(folder)
    flip(folder / DATA)
    assert find_damage(loaded(folder)) == [FileProblem("changed", DATA, "other content")]


def test_a_full_check_finds_a_flipped_byte_on_every_system(folder: Path, recorded: Manifest) -> None:
    flip(folder / DATA)
    assert find_damage(loaded(folder), full=True) == [FileProblem("changed", DATA, "other content")]


def test_another_file_of_the_same_size_and_time_is_found_by_its_id(folder: Path, recorded: Manifest) -> None:
    check = recorded.stamps[DATA]
    other = folder / "other"
    other.write_bytes((folder / DATA).read_bytes())
    flip(other)
    os.utime(other, ns=(LONG_AGO, LONG_AGO))
    other.replace(folder / DATA)
    now = (folder / DATA).stat()
    assert (now.st_size, now.st_mtime_ns) == (check.size, check.mtime_ns)
    assert find_damage(loaded(folder)) == [FileProblem("changed", DATA, "other content")]


@pytest.mark.parametrize("later", [0, DAY])
def test_a_time_about_that_of_the_check_or_ahead_of_it_is_not_trusted(
    later: int, folder: Path, read: list[str]
) -> None:
    aged(folder, time.time_ns() + later)  # a later change within a tick of a coarse clock looks the same
    record_hashes(folder, FILES)
    read.clear()
    assert find_damage(loaded(folder)) == []
    assert sorted(read) == sorted(FILES)


def test_a_check_of_a_clock_that_ran_ahead_is_not_trusted(
    folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = time.time_ns() + DAY
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: ahead)
        record_hashes(folder, FILES)
        read.clear()
    for _ in range(2):
        assert find_damage(loaded(folder)) == []
    assert sorted(read) == sorted(FILES)  # once; that check was made by a clock that is right


def test_the_oldest_check_that_holds_is_told(folder: Path, recorded: Manifest) -> None:
    checked = oldest_check_time(loaded(folder))
    assert checked == min(check.checked_ns for check in recorded.stamps.values()) / 1e9
    recorded.stamps[DATA] = replace(recorded.stamps[DATA], checked_ns=LONG_AGO + DAY)
    assert oldest_check_time(recorded) == (LONG_AGO + DAY) / 1e9
    os.utime(folder / DATA, ns=(LONG_AGO, LONG_AGO + SECOND))
    assert oldest_check_time(recorded) is None


def test_in_a_read_only_folder_nothing_is_remembered_and_nothing_fails(
    small_disk: Path, read: list[str]
) -> None:
    folder = aged(write_tree(FILES, small_disk / "files"), LONG_AGO)
    record_hashes(folder, FILES)
    read.clear()
    notes = manifest_files(folder)[1]
    notes.unlink()
    remount(small_disk, "ro")
    for _ in range(2):
        assert find_damage(loaded(folder)) == []
    assert sorted(read) == sorted([*FILES, *FILES])
    assert {path.name for path in folder.iterdir()} == {
        MANIFEST_NAME,
        "detectron.lmdb",
        "empty",
        "с пробелом",
    }


def test_nothing_is_remembered_while_another_process_changes_the_folder(
    folder: Path, read: list[str]
) -> None:
    os.utime(folder / DATA, ns=(LONG_AGO, LONG_AGO + SECOND))
    with file_lock(folder / LOCK_NAME):
        assert find_damage(loaded(folder)) == []
    assert find_damage(loaded(folder)) == []
    assert find_damage(loaded(folder)) == []
    assert read == [DATA, DATA]


def test_a_file_that_changes_while_it_is_read_is_read_again(
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
        assert find_damage(loaded(folder)) == []
    assert find_damage(loaded(folder)) == [FileProblem("changed", DATA, "other content")]


def test_recording_what_is_not_there_fails_and_writes_nothing(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        record_hashes(folder, [*FILES, "no such file"])
    assert Manifest.load(folder) is None


@pytest.mark.parametrize("damage", ["missing", "with a comment"])
def test_what_the_files_were_made_of_is_known_also_where_their_list_is_not_the_one_that_was_written(
    folder: Path, recorded: Manifest, damage: str
) -> None:
    source = ManifestSource("own.tar.gz", 1, 2, "/elsewhere/own.tar.gz", "a" * 64)
    replace(recorded, hash_origin="archive", source=source).save()
    sums = folder / MANIFEST_NAME
    if damage == "missing":
        sums.unlink()
        record_hashes(folder, FILES)
    else:
        sums.write_text(f"# mine\n{sums.read_text(encoding='utf-8')}", encoding="utf-8", newline="\n")
        loaded(folder).save_stamps()
    manifest = loaded(folder)
    assert (manifest.source, manifest.hash_origin, manifest.was_changed) == (source, "recorded", True)
