"""Commands that install files, killed before any file operation, and checks of the files that remain."""

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
    """Command that installs files in a folder."""

    arguments: tuple[str, ...]
    rerun: Callable[[], object]  # runs the command in this process
    mmf_paths: MmfPaths
    folder: Path
    initial_data: Path | None  # content of the data folder before the command; None if there is none
    expected_files: Files  # content of the folder after the command

    def reset(self) -> None:
        """Restore the data folder to its state before the command."""
        shutil.rmtree(self.mmf_paths.data_dir, ignore_errors=True)
        if self.initial_data is not None:
            shutil.copytree(self.initial_data, self.mmf_paths.data_dir)

    def run(self, kill_step: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the command in a new process, which is killed before a step; steps count from 1 and 0 is no kill."""
        arguments = [*self.arguments, "--data-dir", str(self.mmf_paths.data_dir)]
        return subprocess.run(
            [sys.executable, "-X", "utf8", "-c", _CHILD_PROGRAM, str(kill_step), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    def installed_files(self) -> Files:
        """Return the installed files without those in staging folders."""
        files = read_tree(self.folder) if self.folder.is_dir() else {}
        return {name: content for name, content in files.items() if not f"/{name}".count("/.")}

    def find_steps(self) -> tuple[int, list[int]]:
        """Return the number of steps, which are file operations, and the steps that move files to their targets."""
        self.reset()
        result = self.run()
        assert result.returncode == 0, result.stderr
        steps = [line for line in result.stderr.splitlines() if line.startswith("step ")]
        marker_steps = [number for number, step in enumerate(steps, 1) if Path(step).name == "installing"]
        start, end = marker_steps[0], marker_steps[-1] + 2
        moves = [number for number in range(start, end) if "os.mkdir" not in steps[number - 1]]
        return len(steps), moves

    def check_kill_at_step(self, kill_step: int) -> bool:
        """Kill the command before a step, check the remaining files, and check that they are repaired.

        Returns:
            Whether the command was killed; it has fewer steps otherwise.
        """
        self.reset()
        old_files = self.installed_files()
        if self.run(kill_step).returncode == 0:
            return False
        is_incomplete = is_install_incomplete(self.folder)
        files = self.installed_files()
        if self.folder == self.mmf_paths.dataset.root:
            try:
                choose_splits(self.mmf_paths.dataset)
            except DatasetError as error:
                # A dataset that is to be repaired may be damaged, and stays unchanged until files are moved.
                is_missing = "no Hateful Memes dataset" in str(error)
                assert files in ({}, old_files) if is_missing else is_incomplete or files == old_files
            else:
                assert not is_incomplete
        parts = ["dataset", "features"]
        results = [result for result in verify_parts(parts, self.mmf_paths) if result.folder == self.folder]
        assert not is_incomplete or [result.state for result in results] == ["damaged"]
        if kill_step % 2:
            repair_parts(parts, self.mmf_paths, (), Mirror())
            if is_incomplete:
                assert self.installed_files() == self.expected_files
            else:
                assert files in (old_files, self.expected_files)
        self.rerun()
        assert self.installed_files() == self.expected_files
        assert all(result.is_usable for result in verify_parts(parts, self.mmf_paths))
        assert not staging_folder(self.folder).exists()
        return True


def make_install_commands(folder: Path) -> dict[str, InstallCommand]:
    """Return a first conversion, a conversion that replaces a dataset, a repair, and a replacement of features."""
    release = hostile_archives.write_zip(folder / "release.zip", dataset_files())
    phase_1 = hostile_archives.write_zip(folder / "first.zip", dataset_files(PHASE_1_SPLITS))
    data = "detectron.lmdb/data.mdb"
    a, b = (hostile_archives.write_zip(folder / f"{n}.zip", {data: bytes([n] * 9)}) for n in (1, 2))
    user_files = {"annotations/mine.jsonl": b"{}\n", "images/img/mine.png": b"x", "images/img/mine/1.png": b"y"}

    def convert_first(mmf_paths: MmfPaths) -> None:
        convert(phase_1, mmf_paths)
        write_tree(user_files, mmf_paths.dataset.root)

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
        mmf_paths = MmfPaths.resolve(folder / name, folder / "save")
        initial_data = None
        if prepare is not None:
            prepare(mmf_paths)
            initial_data = mmf_paths.data_dir.rename(folder / f"{name} before")
        target = mmf_paths.dataset.features if "features" in arguments else mmf_paths.dataset.root
        return InstallCommand(
            tuple(map(str, arguments)), partial(rerun, mmf_paths), mmf_paths, target, initial_data, expected_files
        )

    release_files, features_b = mmf_layout(dataset_files()), {data: bytes([2] * 9)}
    convert_release, force_release = partial(convert, release), partial(convert, release, force=True)
    extract_a = partial(extract_features, a, version=None)
    extract_b = partial(extract_features, b, version=None, force=True)
    convert_arguments, extract_arguments = ("convert", "--zip", release), ("features", "extract", b, "--force")
    return {
        "fresh": make_command("fresh", None, convert_release, release_files, *convert_arguments),
        "force": make_command(
            "force", convert_first, force_release, release_files | user_files, *convert_arguments, "--force"
        ),
        "repair": make_command("repair", damage, convert_release, release_files, "repair", "dataset"),
        "features": make_command("features", extract_a, extract_b, features_b, *extract_arguments),
    }
