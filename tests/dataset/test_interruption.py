"""Interrupted and killed conversions, which leave nothing that looks complete and can be run again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from mmf_win.console import Progress
from mmf_win.dataset.convert import convert
from mmf_win.integrity.manifest import Manifest
from mmf_win.paths import MmfPaths
from mmf_win.unpacking.staging import staging_folder
from tests.worlds.crash_points import make_install_commands
from tests.worlds.extractions import interrupt_after, record_written_names
from tests.worlds.flush_recorder import FlushRecorder, forbid_syncfs
from tests.worlds.memes import PASSWORD, dataset_files, mmf_layout, read_tree
from tests.worlds.mounts import mount_filesystem
from tests.worlds.tools import requires_tool, run_program


def while_bytes_are_written(patch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Progress, amount: int) -> None:
        if self._title == "Converting":
            raise KeyboardInterrupt

    patch.setattr(Progress, "advance", interrupt)


@pytest.mark.parametrize("press", [lambda patch: interrupt_after(5, patch), while_bytes_are_written])
def test_ctrl_c_leaves_nothing_that_looks_complete(
    archive: Path, mmf_paths: MmfPaths, press: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        press(patch)
        convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mmfw")]
    assert [path.name for path in mmf_paths.dataset.root.iterdir()] == [".mmfw-lock"]
    convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())


_DIE = """\
import os, signal
from pathlib import Path
from mmf_win.archives import Archive
from mmf_win.dataset.convert import convert
from mmf_win.paths import MmfPaths

extract = Archive.extract

def dying(*arguments):
    for number, done in enumerate(extract(*arguments)):
        if number == 5 and done.name.endswith(".png"):
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # on Windows, SIGTERM kills too
        yield done

Archive.extract = dying
convert(Path({archive!r}), MmfPaths.resolve(Path({data!r}), Path("save")), ask=lambda: {password!r})
"""


def test_killed_conversion_looks_incomplete_and_the_next_one_succeeds(
    archive: Path, mmf_paths: MmfPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = _DIE.format(archive=str(archive), data=str(mmf_paths.data_dir), password=PASSWORD)
    killed = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", script], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert killed.returncode != 0
    assert Manifest.load(mmf_paths.dataset.root) is None
    assert not mmf_paths.dataset.images.exists()
    assert not mmf_paths.dataset.annotation_file("train").exists()
    assert any((staging_folder(mmf_paths.dataset.root) / "new" / "images").rglob("*.png"))

    written_names = record_written_names(monkeypatch)
    result = convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert not result.already_done
    assert len([name for name in written_names if name.endswith(".png")]) == 16, "the conversion must start over"
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())
    assert sorted(p.name for p in mmf_paths.dataset.root.iterdir() if p.name.startswith(".")) == [".mmfw-lock"]


@pytest.mark.parametrize("kind", ["force", "features"])
def test_kill_at_any_installation_step_leaves_no_partial_result(kind: str, user_dir: Path) -> None:
    installation = make_install_commands(user_dir)[kind]
    _, moves = installation.find_steps()
    for step in moves if sys.platform != "win32" else moves[::5]:  # starting a process takes seconds on Windows
        assert installation.check_kill_at_step(step), f"the command ended before step {step}"


def test_interrupt_after_any_move_of_a_forced_conversion_loses_no_image(
    archive: Path, mmf_paths: MmfPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(archive, mmf_paths, ask=lambda: PASSWORD)
    user_image = mmf_paths.dataset.images / "img" / "mine.png"
    user_image.write_bytes(b"mine")
    complete = {**mmf_layout(dataset_files()), "images/img/mine.png": b"mine"}
    replace = Path.replace
    for step in count(1):
        moves = [0]

        def interrupted(path: Path, target: Path, moves: list[int] = moves, step: int = step) -> Path:
            result = replace(path, target)
            if staging_folder(mmf_paths.dataset.root) in path.parents or ".mmfw-staging" in target.parts:
                moves[0] += path.suffix != ".part"
                if moves[0] == step and path.suffix != ".part":
                    raise KeyboardInterrupt
            return result

        try:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "replace", interrupted)
                convert(archive, mmf_paths, ask=lambda: PASSWORD, force=True)
        except KeyboardInterrupt:
            convert(archive, mmf_paths, ask=lambda: PASSWORD)
            assert read_tree(mmf_paths.dataset.root) == complete
        else:
            break
    assert step > 2 * 4, "each move of the images and three splits must be interrupted"


def test_conversion_flushes_all_files(
    archive: Path, mmf_paths: MmfPaths, flush_recorder: FlushRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On file systems that write contents late, a file that was not flushed is empty after a power cut."""
    forbid_syncfs(monkeypatch)
    convert(archive, mmf_paths, ask=lambda: PASSWORD)
    for path in flush_recorder.find_unflushed(mmf_paths.dataset.root):
        path.write_bytes(b"")
    assert convert(archive, mmf_paths).already_done
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())


@requires_tool("mkfs.ext4", "mount", exists_on_windows=False)
def test_power_cut_after_a_conversion_loses_nothing(archive: Path, tmp_path: Path, user_dir: Path) -> None:
    disk, folder = tmp_path / "disk", tmp_path / "mounted"
    folder.mkdir()
    with disk.open("wb") as file:
        file.truncate(100 << 20)
    run_program("mkfs.ext4", "-q", str(disk), cwd=tmp_path)
    mmf_paths = MmfPaths.resolve(folder / "data", user_dir / "save")
    with mount_filesystem(folder, "-o", "loop", str(disk)):
        convert(archive, mmf_paths, ask=lambda: PASSWORD)
        persist_names(mmf_paths.dataset.root)
        shutil.copyfile(disk, tmp_path / "after the power cut")
    with mount_filesystem(folder, "-o", "loop", str(tmp_path / "after the power cut")):
        assert convert(archive, mmf_paths).already_done
        assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())


def persist_names(folder: Path) -> None:
    """Write the names of files to the disk, as the system does from time to time, but not their contents."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
