"""Installations behind a link to another disk, and in an overlay file system like that of Docker."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import mkdtemp

import pytest

from mmf_win.runs.folder import discard_folder
from mmf_win.unpacking.staging import finish_installation, is_install_incomplete, open_staging, staging_folder
from tests.unpacking.test_staging import Disk, Killed, disk
from tests.worlds.memes import Files, read_tree, write_tree
from tests.worlds.mounts import mount_filesystem

__all__ = ["disk"]

OLD: Files = {"images/img/1": b"old 1", "images/img/sub/2": b"old 2", "annotations/a": b"old a", "sums": b"old"}
NEW: Files = {"images/img/1": b"new 1", "images/img/3": b"new 3", "annotations/a": b"new a", "sums": b"new"}
_SHM = Path("/dev/shm")


@pytest.fixture(params=["a link", "a mount of the same disk", "an overlay"])
def root(request: pytest.FixtureRequest, tmp_path: Path, small_disk: Path) -> Iterator[Path]:
    """Return a folder with the old files, with the images on another disk or in a lower layer."""
    if request.param == "a link":
        root = write_tree(OLD, tmp_path / "root")
        shutil.move(root / "images", small_disk / "images")
        (root / "images").symlink_to(small_disk / "images")
        yield root
        return
    if request.param == "a mount of the same disk":
        root = write_tree(OLD, small_disk / "root")
        (root / "images").rename(small_disk / "images")
        (root / "images").mkdir()
        with mount_filesystem(root / "images", "--bind", str(small_disk / "images")):
            yield root
        return
    lower, upper, work, merged = (small_disk / name for name in ("lower", "upper", "work", "merged"))
    for folder in (upper, work, merged):
        folder.mkdir()
    write_tree(OLD, lower / "root")
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    with mount_filesystem(merged, "-t", "overlay", "-o", options, "overlay"):
        yield merged / "root"


def install(root: Path) -> None:
    """Replace all old files like a conversion does, and add a new one."""
    with open_staging(root) as staging:
        write_tree(NEW, staging.new_dir)
        moves = [(None, root / name) for name in ("sums", "images/img")]
        staging.install([*moves, *((staging.new_dir / n, root / n) for n in ("annotations/a", "images/img", "sums"))])


def contents(root: Path) -> Files:
    """Return all files except the lock, by path."""
    files = {**read_tree(root), **{f"images/{name}": content for name, content in read_tree(root / "images").items()}}
    return {name: content for name, content in files.items() if name != ".mmfw-lock"}


def test_new_files_are_installed(root: Path) -> None:
    with pytest.raises(OSError, match="cross-device"):
        (root / "images" / "img").rename(root / "moved")
    install(root)
    assert contents(root) == NEW
    assert not [*root.rglob(".mmfw-staging"), *(root / "images").rglob(".mmfw-*")]


def test_single_files_and_new_folders_are_installed(root: Path) -> None:
    with open_staging(root) as staging:
        write_tree({"1": b"repaired", "sub/2": b"repaired"}, staging.new_dir)
        images = root / "images"
        staging.install(
            [(staging.new_dir / "1", images / "img" / "1"), (staging.new_dir / "sub", images / "more" / "sub")]
        )
    expected = {**OLD, "images/img/1": b"repaired", "images/more/sub/2": b"repaired"}
    assert contents(root) == expected
    assert not [*(root / "images").rglob(".mmfw-*")]


def _restore_files(root: Path, saved: Path) -> None:
    """Restore the files of a folder from a copy."""
    for name in ("images", "annotations"):
        for path in (root / name).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(saved / name, root / name, dirs_exist_ok=True)
    shutil.copy2(saved / "sums", root / "sums")


@pytest.mark.parametrize("failing", range(1, 7))
def test_installation_failing_at_any_rename_restores_all_old_files(failing: int, root: Path, disk: Disk) -> None:
    disk.fail(OSError(errno.EIO, "the disk fails once"), lambda step: step == failing)
    with pytest.raises(OSError, match="fails once"):
        install(root)
    assert contents(root) == OLD
    assert not is_install_incomplete(root)
    assert not [*root.rglob(".mmfw-staging"), *(root / "images").rglob(".mmfw-*")]


def test_full_disk_changes_nothing(root: Path, small_disk: Path) -> None:
    with (small_disk / "filler").open("wb") as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    with pytest.raises(OSError, match="No space") as full:
        install(root)
    assert full.value.errno == errno.ENOSPC
    assert contents(root) == OLD
    assert not is_install_incomplete(root)
    assert not [*root.rglob(".mmfw-staging"), *(root / "images").rglob(".mmfw-*")]


def test_installation_killed_at_any_step_is_completed_by_the_next(root: Path, tmp_path: Path, disk: Disk) -> None:
    saved = write_tree(OLD, tmp_path / "saved")
    for last in count(1):
        disk.fail(Killed(), lambda step, last=last: step >= last)  # type: ignore[misc]
        died = False
        try:
            install(root)
        except Killed:
            died = True
        disk.recover()
        had_started = is_install_incomplete(root)
        assert finish_installation(root)
        assert contents(root) == (NEW if had_started or not died else contents(root))
        assert contents(root) in (OLD, NEW)
        assert not staging_folder(root).exists()
        assert not [*(root / "images").rglob(".mmfw-*")]
        if not died:
            break
        _restore_files(root, saved)
    assert last > 5


@pytest.mark.parametrize("last", [1, 2])
def test_process_killed_before_the_moves_leaves_no_files_in_images(last: int, root: Path) -> None:
    script = f"""if True:
        import itertools, os, pathlib, sys
        from tests.unpacking.test_staging_across_disks import install
        renames = itertools.count(1)
        def kill(event, arguments):
            if event == "os.rename" and next(renames) == {last}:
                os._exit(9)
        sys.addaudithook(kill)
        install(pathlib.Path(sys.argv[1]))"""
    assert subprocess.run([sys.executable, "-c", script, str(root)], check=False).returncode == 9
    finish_installation(root)
    assert contents(root) == OLD
    assert not [*(root / "images").rglob(".mmfw-*")]


def test_old_files_of_another_installation_are_kept(root: Path) -> None:
    kept = staging_folder(root / "images") / "old-other" / "0"
    kept.parent.mkdir(parents=True)
    kept.touch()
    install(root)
    assert [*(root / "images").rglob(".mmfw-*/**/*")] == [kept.parent, kept]


def test_undeletable_old_files_are_removed_by_the_next_installation(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **options: bool) -> None:  # like Windows if a file in it is open
        if not path.name.startswith("old-"):
            remove(path, **options)

    remove = shutil.rmtree
    with monkeypatch.context() as context:
        context.setattr(shutil, "rmtree", refuse)
        install(root)
    with open_staging(root):
        pass
    assert not [*(root / "images").rglob(".mmfw-*"), *root.rglob(".mmfw-staging")]


def test_folder_in_a_lower_layer_is_removed(root: Path) -> None:
    folder = root / "images" / "img"
    discard_folder(folder, "1")
    assert not folder.exists() and [path.name for path in folder.parent.iterdir()] == []


def test_link_to_shared_memory_is_another_disk(tmp_path: Path) -> None:
    if sys.platform == "win32" or not _SHM.is_dir() or _SHM.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("Windows and systems without /dev/shm have no second disk")
    other = Path(mkdtemp(dir=_SHM))
    try:
        root = tmp_path / "root"
        root.mkdir()
        (root / "images").symlink_to(other)
        write_tree(OLD, root)
        install(root)
        assert contents(root) == NEW
        assert [path.name for path in other.iterdir()] == ["img"]
    finally:
        shutil.rmtree(other)
