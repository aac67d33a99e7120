"""A conversion that is interrupted or killed looks unfinished, and the next one goes on where it ended."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mmf_win.archives import Extracted
from mmf_win.console import Progress
from mmf_win.dataset.convert import convert
from mmf_win.integrity.manifest import Manifest
from mmf_win.paths import Places
from mmf_win.unpacking.reading import Journal
from mmf_win.unpacking.staging import Staging, staging_folder
from tests.worlds import hostile
from tests.worlds.journals import noted
from tests.worlds.memes import PASSWORD, PHASE_1, encrypted_zip, laid_out, memes, tree, with_packed_images
from tests.worlds.tools import call, requires_tool


def interrupt_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl+C when so many images are complete."""
    note = Journal.note
    left = [count]

    def noting(self: Journal, done: Extracted) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        note(self, done)

    monkeypatch.setattr(Journal, "note", noting)


def test_ctrl_c_leaves_nothing_that_looks_finished(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(5, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        convert(archive, places, ask=lambda: PASSWORD)
    assert {path.name for path in places.dataset.root.iterdir()} == {".mmfw-lock", ".mmfw-staging"}


def test_ctrl_c_while_bytes_are_written_stops_at_once(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Progress, amount: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "advance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert(archive, places, ask=lambda: PASSWORD)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mmfw")]


def test_an_interrupted_conversion_goes_on_where_it_ended(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after(5, patch)
        convert(archive, places, ask=lambda: PASSWORD)

    again = noted(monkeypatch)
    result = convert(archive, places, ask=lambda: PASSWORD)
    assert len(again) == 16 - 5
    assert tree(places.dataset.root) == laid_out(memes())
    assert result.sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert convert(archive, places).already_done


def test_what_changed_after_an_interruption_is_extracted_again(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        convert_until_it_is_moved(archive, places)
    here = staging_folder(places.dataset.root)
    images = here / "new" / "images" / "img"
    hostile.flip_byte(images / "00001.png", 100)
    hostile.cut(images / "00002.png")
    (images / "00003.png").unlink()
    with (here / "journal").open("a", encoding="utf-8") as journal:
        journal.write('{"name": "images/img/00004.png", "si')  # torn by a power cut

    again = noted(monkeypatch)
    convert(archive, places, ask=lambda: PASSWORD)
    assert sorted(again) == ["00001.png", "00002.png", "00003.png"]
    assert tree(places.dataset.root) == laid_out(memes())


def convert_until_it_is_moved(archive: Path, places: Places) -> None:
    """Press Ctrl+C when all images are extracted, before anything is moved."""
    with pytest.MonkeyPatch.context() as patch:

        def interrupt(self: Staging, moves: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(Staging, "install", interrupt)
        convert(archive, places, ask=lambda: PASSWORD)


def test_what_another_archive_has_left_is_not_used(
    archive: Path, user_dir: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after(5, patch)
        convert(encrypted_zip(user_dir / "old.zip", memes(PHASE_1)), places, ask=lambda: PASSWORD)
    again = noted(monkeypatch)
    convert(archive, places, ask=lambda: PASSWORD)
    assert len(again) == 16
    assert tree(places.dataset.root) == laid_out(memes())


def test_packed_images_are_not_unpacked_twice(
    user_dir: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encrypted_zip(user_dir / "a.zip", with_packed_images(memes()))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after(6, patch)
        convert(path, places, ask=lambda: PASSWORD)
    again = noted(monkeypatch)
    result = convert(path, places, ask=lambda: PASSWORD)
    assert "img.tar.gz" not in again and len(again) == 16 - 5
    assert tree(places.dataset.root) == laid_out(memes())
    assert result.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


_DIE = """\
import os, signal, sys
from pathlib import Path
from mmf_win.dataset.convert import convert
from mmf_win.unpacking.reading import Journal
from mmf_win.paths import Places

note = Journal.note
noted = []

def noting(self, done):
    if len(noted) == 5:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # on Windows both kill
    noted.append(done)
    note(self, done)

Journal.note = noting
convert(Path({archive!r}), Places.resolve(Path({data!r}), Path("save")), ask=lambda: {password!r})
"""


def test_a_killed_conversion_looks_unfinished_and_the_next_one_succeeds(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = _DIE.format(archive=str(archive), data=str(places.data_dir), password=PASSWORD)
    killed = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert killed.returncode != 0
    assert Manifest.load(places.dataset.root) is None
    assert not places.dataset.images.exists()
    assert not places.dataset.split("train").exists()

    again = noted(monkeypatch)
    result = convert(archive, places, ask=lambda: PASSWORD)
    assert not result.already_done
    assert len(again) == 16 - 5
    assert tree(places.dataset.root) == laid_out(memes())
    assert sorted(p.name for p in places.dataset.root.iterdir() if p.name.startswith(".")) == [".mmfw-lock"]


@requires_tool("mkfs.ext4", "mount", on_windows=False)
def test_a_power_cut_after_a_conversion_takes_nothing_of_it(
    archive: Path, tmp_path: Path, user_dir: Path
) -> None:
    disk, folder = tmp_path / "disk", tmp_path / "mounted"
    folder.mkdir()
    with disk.open("wb") as file:
        file.truncate(100 << 20)
    call("mkfs.ext4", "-q", str(disk), cwd=tmp_path)
    places = Places.resolve(folder / "data", user_dir / "save", environ={})
    with mounted(disk, folder):
        convert(archive, places, ask=lambda: PASSWORD)
        persist_names(places.dataset.root)
        shutil.copyfile(disk, tmp_path / "after the power cut")
    with mounted(tmp_path / "after the power cut", folder):
        assert convert(archive, places).already_done
        assert tree(places.dataset.root) == laid_out(memes())


@contextmanager
def mounted(disk: Path, folder: Path) -> Iterator[None]:
    """A file mounted as a disk."""
    command = ["mount", "-o", "loop", str(disk), str(folder)]
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("no right to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def persist_names(folder: Path) -> None:
    """Write the names of files to the disk, as the system does by and by, but not the files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
