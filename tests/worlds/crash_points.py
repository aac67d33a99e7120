"""Commands that put files into place, killed at any step on the disk, and what may be read afterwards."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mmf_win.dataset.annotations import choose_splits
from mmf_win.dataset.convert import convert
from mmf_win.dataset.region_features import extract_features
from mmf_win.doctor.verify_all import repair_parts, verify_parts
from mmf_win.errors import DatasetError
from mmf_win.inputs.input_files import Mirror
from mmf_win.paths import MmfPaths
from mmf_win.unpacking.staging import is_install_incomplete, staging_folder
from tests.worlds import hostile_archives
from tests.worlds.memes import PHASE_1_SPLITS, Files, dataset_files, mmf_layout, read_tree, write_tree

_CHILD_PROGRAM = """\
import os, signal, sys
from mmf_win.cli import main

last, step = int(sys.argv.pop(1)), 0

def watch(event, args):
    global step
    if event == "open":
        if not isinstance(args[1], str) or not set(args[1]) & set("wax+"):
            return
    elif event not in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"):
        return
    step += 1
    if not last:
        print("step", event, args[event in ("os.rename", "os.link")], file=sys.stderr)
    elif step == last:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # on Windows both kill

sys.addaudithook(watch)
main()
"""


@dataclass(frozen=True)
class InstallCommand:
    """A command that puts files into a folder."""

    arguments: tuple[str, ...]
    rerun: Callable[[], object]  # does the same in this process
    mmf_paths: MmfPaths
    folder: Path
    initial_data: Path | None  # the data folder as it is before
    expected_files: Files  # what is in the folder afterwards

    def reset(self) -> None:
        """Make the data folder as it was before."""
        shutil.rmtree(self.mmf_paths.data_dir, ignore_errors=True)
        if self.initial_data is not None:
            shutil.copytree(self.initial_data, self.mmf_paths.data_dir)

    def run(self, kill_step: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the command in a process of its own, which is killed just before a step, counted from 1."""
        words = [*self.arguments, "--data-dir", str(self.mmf_paths.data_dir)]
        return subprocess.run(
            [sys.executable, "-X", "utf8", "-c", _CHILD_PROGRAM, str(kill_step), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    def installed_files(self) -> Files:
        """Return what is in its place; staging folders, also those next to targets, are no part of it."""
        there = read_tree(self.folder) if self.folder.is_dir() else {}
        return {name: content for name, content in there.items() if not f"/{name}".count("/.")}

    def find_steps(self) -> tuple[int, list[int]]:
        """Return the number of steps on the disk, and the steps that move files into place."""
        self.reset()
        done = self.run()
        assert done.returncode == 0, done.stderr
        steps = [line for line in done.stderr.splitlines() if line.startswith("step ")]
        marks = [number for number, step in enumerate(steps, 1) if Path(step).name == "installing"]
        begin, end = marks[0], marks[-1] + 2
        moves = [number for number in range(begin, end) if "os.mkdir" not in steps[number - 1]]
        return len(steps), moves

    def check_kill_at_step(self, kill_step: int) -> bool:
        """Kill it before a step, and see what may be read and how that is mended; whether it was killed."""
        self.reset()
        old = self.installed_files()
        if self.run(kill_step).returncode == 0:
            return False
        unfinished = is_install_incomplete(self.folder)
        left = self.installed_files()
        if self.folder == self.mmf_paths.dataset.root:
            try:
                choose_splits(self.mmf_paths.dataset)
            except DatasetError as error:
                # What a repair finds may be damaged, and still is before anything is moved.
                none = "no Hateful Memes dataset" in str(error)
                assert left in ({}, old) if none else unfinished or left == old
            else:
                assert not unfinished
        parts = ["dataset", "features"]
        found = [finding for finding in verify_parts(parts, self.mmf_paths) if finding.folder == self.folder]
        assert not unfinished or [finding.state for finding in found] == ["damaged"]
        if kill_step % 2:
            repair_parts(parts, self.mmf_paths, (), Mirror())
            assert self.installed_files() == self.expected_files if unfinished else left in (old, self.expected_files)
        self.rerun()
        assert self.installed_files() == self.expected_files
        assert all(finding.is_usable for finding in verify_parts(parts, self.mmf_paths))
        assert not staging_folder(self.folder).exists()
        return True


def make_install_commands(folder: Path) -> dict[str, InstallCommand]:
    """A conversion where nothing is, one in the place of another set, a repair, and other region features."""
    release = hostile_archives.write_zip(folder / "release.zip", dataset_files())
    first = hostile_archives.write_zip(folder / "first.zip", dataset_files(PHASE_1_SPLITS))
    data = "detectron.lmdb/data.mdb"
    a, b = (hostile_archives.write_zip(folder / f"{n}.zip", {data: bytes([n] * 9)}) for n in (1, 2))
    own = {"annotations/mine.jsonl": b"{}\n", "images/img/mine.png": b"x", "images/img/mine/1.png": b"y"}

    def convert_first(mmf_paths: MmfPaths) -> None:
        convert(first, mmf_paths)
        write_tree(own, mmf_paths.dataset.root)

    def damage(mmf_paths: MmfPaths) -> None:
        convert(release, mmf_paths)
        hostile_archives.truncate_file(mmf_paths.dataset.root / "images" / "img" / "00003.png")
        (mmf_paths.dataset.root / "annotations" / "train.jsonl").unlink()

    def make_command(
        name: str,
        prepare: Callable[[MmfPaths], object] | None,
        rerun: Callable[[MmfPaths], object],
        expected_files: Files,
        *arguments: object,
    ) -> InstallCommand:
        places = MmfPaths.resolve(folder / name, folder / "save")
        prepared = None
        if prepare is not None:
            prepare(places)
            prepared = places.data_dir.rename(folder / f"{name} before")
        target = places.dataset.features if "features" in arguments else places.dataset.root
        return InstallCommand(
            tuple(map(str, arguments)), partial(rerun, places), places, target, prepared, expected_files
        )

    new, of_b = mmf_layout(dataset_files()), {data: bytes([2] * 9)}
    again, forced = partial(convert, release), partial(convert, release, force=True)
    extract_a = partial(extract_features, a, version=None)
    extract_b = partial(extract_features, b, version=None, force=True)
    words, extracting = ("convert", "--zip", release), ("features", "extract", b, "--force")
    return {
        "fresh": make_command("fresh", None, again, new, *words),
        "force": make_command("force", convert_first, forced, new | own, *words, "--force"),
        "repair": make_command("repair", damage, again, new, "repair", "dataset"),
        "features": make_command("features", extract_a, extract_b, of_b, *extracting),
    }
