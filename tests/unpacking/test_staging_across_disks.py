"""Installations behind a link to another disk, and in an overlay file system as that of a Docker image."""

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

OLD: Files = {
    "images/img/1": b"old 1",
    "images/img/sub/2": b"old 2",
    "annotations/a": b"old a",
    "sums": b"old",
}
NEW: Files = {"images/img/1": b"new 1", "images/img/3": b"new 3", "annotations/a": b"new a", "sums": b"new"}
_SHM = Path("/dev/shm")


@pytest.fixture(params=["a link", "a mount of the same disk", "an overlay"])
def root(request: pytest.FixtureRequest, tmp_path: Path, small_disk: Path) -> Iterator[Path]:
    """Return a folder with the old files, whose images lie on another disk or in a lower layer."""
    if request.param == "a link":
        made = write_tree(OLD, tmp_path / "root")
        shutil.move(made / "images", small_disk / "images")
        (made / "images").symlink_to(small_disk / "images")
        yield made
        return
    if request.param == "a mount of the same disk":
        made = write_tree(OLD, small_disk / "root")
        (made / "images").rename(small_disk / "images")
        (made / "images").mkdir()
        with mount_filesystem(made / "images", "--bind", str(small_disk / "images")):
            yield made
        return
    lower, upper, work, merged = (small_disk / name for name in ("lower", "upper", "work", "merged"))
    for folder in (upper, work, merged):
        folder.mkdir()
    write_tree(OLD, lower / "root")
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    with mount_filesystem(merged, "-t", "overlay", "-o", options, "overlay"):
        yield merged / "root"


def install(root: Path) -> None:
    """Replace all old files by new ones, as a conversion does, with one file that has no target yet."""
    with open_staging(root) as here:
        write_tree(NEW, here.new_dir)
        moves = [(None, root / name) for name in ("sums", "images/img")]
        here.install(
            [*moves, *((here.new_dir / n, root / n) for n in ("annotations/a", "images/img", "sums"))]
        )


def contents(root: Path) -> Files:
    """Return all files but the lock, each by its path."""
    found = {
        **read_tree(root),
        **{f"images/{name}": content for name, content in read_tree(root / "images").items()},
    }
    return {name: content for name, content in found.items() if name != ".mmfw-lock"}


def test_new_files_take_their_places(root: Path) -> None:
    with pytest.raises(OSError, match="cross-device"):
        (root / "images" / "img").rename(root / "moved")
    install(root)
    assert contents(root) == NEW
    assert not [*root.rglob(".mmfw-staging"), *(root / "images").rglob(".mmfw-*")]


def test_single_files_and_new_folders_take_their_places(root: Path) -> None:
    with open_staging(root) as here:
        write_tree({"1": b"repaired", "sub/2": b"repaired"}, here.new_dir)
        images = root / "images"
        here.install(
            [(here.new_dir / "1", images / "img" / "1"), (here.new_dir / "sub", images / "more" / "sub")]
        )
    expected = {**OLD, "images/img/1": b"repaired", "images/more/sub/2": b"repaired"}
    assert contents(root) == expected
    assert not [*(root / "images").rglob(".mmfw-*")]


def _copy_of(root: Path, saved: Path) -> None:
    """Bring the files of a folder back to what a copy of them holds."""
    for name in ("images", "annotations"):
        for path in (root / name).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(saved / name, root / name, dirs_exist_ok=True)
    shutil.copy2(saved / "sums", root / "sums")


@pytest.mark.parametrize("failing", range(1, 7))
def test_an_installation_that_fails_at_any_rename_leaves_all_old_files(
    failing: int, root: Path, disk: Disk
) -> None:
    disk.fail(OSError(errno.EIO, "the disk fails once"), lambda step: step == failing)
    with pytest.raises(OSError, match="fails once"):
        install(root)
    assert contents(root) == OLD
    assert not is_install_incomplete(root)
    assert not [*root.rglob(".mmfw-staging"), *(root / "images").rglob(".mmfw-*")]


def test_a_lack_of_room_changes_nothing(root: Path, small_disk: Path) -> None:
    with (small_disk / "filler").open("wb") as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    with pytest.raises(OSError, match="No space") as full:
        install(root)
    assert full.value.errno == errno.ENOSPC
    assert contents(root) == OLD
    assert not is_install_incomplete(root)
    assert not [*root.rglob(".mmfw-staging"), *(root / "images").rglob(".mmfw-*")]


def test_a_process_that_dies_at_any_step_leaves_the_rest_to_the_next(
    root: Path, tmp_path: Path, disk: Disk
) -> None:
    saved = write_tree(OLD, tmp_path / "saved")
    for last in count(1):
        disk.fail(Killed(), lambda step, last=last: step >= last)  # type: ignore[misc]
        died = False
        try:
            install(root)
        except Killed:
            died = True
        disk.recover()
        was_begun = is_install_incomplete(root)
        assert finish_installation(root)
        assert contents(root) == (NEW if was_begun or not died else contents(root))
        assert contents(root) in (OLD, NEW)
        assert not staging_folder(root).exists()
        assert not [*(root / "images").rglob(".mmfw-*")]
        if not died:
            break
        _copy_of(root, saved)
    assert last > 5


@pytest.mark.parametrize("last", [1, 2])
def test_a_process_that_is_killed_before_the_moves_leaves_nothing_among_the_images(
    last: int, root: Path
) -> None:
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


def test_what_another_installation_keeps_in_a_shared_folder_stays(root: Path) -> None:
    kept = staging_folder(root / "images") / "old-other" / "0"
    kept.parent.mkdir(parents=True)
    kept.touch()
    install(root)
    assert [*(root / "images").rglob(".mmfw-*/**/*")] == [kept.parent, kept]


def test_what_cannot_be_removed_on_another_disk_is_removed_by_the_next_installation(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **options: bool) -> None:  # as Windows does where a file in it is open
        if not path.name.startswith("old-"):
            remove(path, **options)

    remove = shutil.rmtree
    with monkeypatch.context() as context:
        context.setattr(shutil, "rmtree", refuse)
        install(root)
    with open_staging(root):
        pass
    assert not [*(root / "images").rglob(".mmfw-*"), *root.rglob(".mmfw-staging")]


def test_a_folder_is_removed_in_a_lower_layer_too(root: Path) -> None:
    folder = root / "images" / "img"
    discard_folder(folder, "1")
    assert not folder.exists() and [path.name for path in folder.parent.iterdir()] == []


def test_a_link_to_shared_memory_is_another_disk(tmp_path: Path) -> None:
    if sys.platform == "win32" or not _SHM.is_dir() or _SHM.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("Windows, and a system without /dev/shm, has no second disk here")
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
