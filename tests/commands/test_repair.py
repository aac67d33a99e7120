"""``mmfw repair`` after each kind of damage that ``mmfw verify`` finds."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmf_win.dataset.convert import convert
from mmf_win.dataset.region_features import extract_features
from mmf_win.errors import DamagedManifestError
from mmf_win.integrity.manifest import Manifest, manifest_files
from mmf_win.integrity.verify import record_hashes
from mmf_win.paths import DatasetPaths, MmfPaths
from mmf_win.upstream.install import find_mmf, use_checkout
from tests.worlds import hostile_archives
from tests.worlds.memes import PASSWORD, dataset_files, make_encrypted_zip, mmf_layout, read_tree, tar_gz, write_tree
from tests.worlds.tools import MmfwRunner, split_command

RUN = Path("mmbt_grid/2026-01-01T00-00-00/checkpoints")

DAMAGES: dict[str, Callable[[MmfPaths], Any]] = {
    "an image changed": lambda p: hostile_archives.flip_byte(p.dataset.images / "img/00003.png", 100),
    "an image is missing": lambda p: (p.dataset.images / "img/00004.png").unlink(),
    "annotations cut off": lambda p: hostile_archives.truncate_file(p.dataset.annotation_file("train")),
    "the hashes changed": lambda p: hostile_archives.flip_byte(p.dataset.root / "SHA256SUMS", 1),
    "the hashes cut off": lambda p: hostile_archives.truncate_file(p.dataset.root / "SHA256SUMS"),
    "the hashes are missing": lambda p: (p.dataset.root / "SHA256SUMS").unlink(),
    "the hashes are emptied": lambda p: os.truncate(p.dataset.root / "SHA256SUMS", 0),
    "killed while moving files, with an emptied list": lambda p: interrupt_the_moves(p.dataset),
    "features cut off": lambda p: hostile_archives.truncate_file(p.dataset.features / "detectron.lmdb/data.mdb"),
    "features are missing": lambda p: (p.dataset.features / "detectron.lmdb/data.mdb").unlink(),
    "their hashes changed": lambda p: hostile_archives.flip_byte(p.dataset.features / "SHA256SUMS", 1),
    "their hashes cut off": lambda p: hostile_archives.truncate_file(p.dataset.features / "SHA256SUMS"),
    "weights with a cut list": lambda p: hostile_archives.truncate_file(p.data_dir / "models/visual_bert/SHA256SUMS"),
    "weights changed": lambda p: hostile_archives.flip_byte(p.data_dir / "models/visual_bert/model.pth", 100),
    "a file of MMF is missing": lambda p: (find_mmf().root / "mmf.txt").unlink(),
    "a file of MMF changed": lambda p: hostile_archives.flip_byte(find_mmf().root / "mmf_cli/run.py", 3),
    "all hashes of MMF are gone": lambda p: [file.unlink() for file in manifest_files(find_mmf().root)],
    "MMF is gone": lambda p: shutil.rmtree(find_mmf().root),
}


def interrupt_the_moves(paths: DatasetPaths) -> None:
    paths.annotation_file("dev_seen").unlink()
    (paths.root / ".mmfw-staging").mkdir()
    (paths.root / ".mmfw-staging" / "installing").touch()


def parse_hint(errors: str) -> list[str]:
    """Return the arguments of the command in the last hint."""
    hints = re.findall("^hint: run `mmfw (.*)`$", errors, re.MULTILINE)
    return split_command(hints[-1])


@pytest.mark.parametrize("damage", DAMAGES)
def test_command_in_the_hint_of_verify_repairs_the_damage(world: MmfPaths, damage: str, mmfw: MmfwRunner) -> None:
    DAMAGES[damage](world)
    mmfw("verify", code=3)
    command = parse_hint(mmfw.err)
    assert command[0] == "repair"
    mmfw(*command)
    assert "repaired" in mmfw.err
    mmfw("verify", "--full")
    assert read_tree(world.dataset.root).items() >= mmf_layout(dataset_files()).items()


@pytest.mark.parametrize("command", ["verify", "repair"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--data-dir"], 2),
        (["runs", "--save-dir"], 2),
        (["dataset", "mmbt_grid/2026-01-01T00-00-00", "--save-dir"], 2),
        (["--save-dir"], 0),
        (["dataset", "--save-dir"], 0),
    ],
)
def test_missing_folder_is_an_error_only_if_its_parts_are_named(
    world: MmfPaths, tmp_path: Path, mmfw: MmfwRunner, command: str, arguments: list[str], code: int
) -> None:
    mmfw(command, *arguments, tmp_path / "nowhere", code=code)
    message = mmfw.err
    assert code == 0 or "nowhere" in message or "no part, preset or run named" in message
    assert not (tmp_path / "nowhere").exists()


def test_all_damage_is_repaired_at_once_and_nothing_else_changes(world: MmfPaths, mmfw: MmfwRunner) -> None:
    DAMAGES["an image changed"](world)
    DAMAGES["weights changed"](world)
    DAMAGES["a file of MMF is missing"](world)
    untouched = world.dataset.images / "img/00005.png"
    before = untouched.stat().st_mtime_ns
    mmfw("verify", code=3)
    results = {result["what"]: result for result in mmfw.json("repair")}
    repaired = {name for name, result in results.items() if result["repaired"]}
    assert repaired == {"dataset", "models/visual_bert", "MMF 9.9.0"}
    assert {result["state"] for result in results.values()} == {"intact"}
    assert untouched.stat().st_mtime_ns == before
    mmfw("repair")
    assert "no damage found" in mmfw.err


def test_damage_found_only_with_full_is_repaired_afterwards(world: MmfPaths, mmfw: MmfwRunner) -> None:
    mmfw("verify")
    data = world.dataset.features / "detectron.lmdb/data.mdb"
    stat = data.stat()
    hostile_archives.flip_byte(data, 100)
    os.utime(data, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    mmfw("verify", "--full", code=3)
    mmfw("repair")
    mmfw("verify", "--full")


def test_damaged_checkpoint_cannot_be_repaired_and_nothing_is_deleted(world: MmfPaths, mmfw: MmfwRunner) -> None:
    folder = world.save_dir / RUN
    hostile_archives.truncate_file(folder / "current.ckpt")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    mmfw("repair", code=3)
    errors = mmfw.err
    assert "current.ckpt: truncated" in errors
    assert "the newest intact checkpoint is best.ckpt" in errors and "mmfw train --resume last --save-dir" in errors
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    hostile_archives.truncate_file(folder / "best.ckpt")
    assert "no intact checkpoint" in mmfw("repair", "runs", code=3)


@pytest.mark.parametrize("command", ["repair dataset", "convert --zip"])
@pytest.mark.parametrize("damage", [name for name in DAMAGES if name.startswith("the hashes")])
def test_user_files_survive_a_repair_without_hashes(
    world: MmfPaths, user_dir: Path, mmfw: MmfwRunner, command: str, damage: str
) -> None:
    DAMAGES["an image changed"](world)
    DAMAGES[damage](world)
    user_files = [world.dataset.annotations / "dev_of_mine.jsonl", world.dataset.images / "img" / "mine.png"]
    for path in user_files:
        path.write_bytes(b"own")
    mmfw(*command.split(), *([user_dir / "memes.zip"] if command.startswith("convert") else []))
    mmfw("verify", "--full")
    assert read_tree(world.dataset.root).items() >= mmf_layout(dataset_files()).items()
    assert [path.read_bytes() for path in user_files] == [b"own", b"own"]


def test_dataset_without_hashes_and_archive_is_accepted_after_deleting_the_manifest(
    world: MmfPaths, user_dir: Path, mmfw: MmfwRunner
) -> None:
    sums = world.dataset.root / "SHA256SUMS"
    DAMAGES["the hashes cut off"](world)
    (user_dir / "memes.zip").unlink()
    with pytest.raises(DamagedManifestError):
        Manifest.load(world.dataset.root)
    assert f"delete {sums}" in mmfw("repair", "dataset", code=3)
    sums.unlink()
    assert Manifest.load(world.dataset.root) is None


def test_given_archive_repairs_a_dataset_without_a_recorded_source(
    world: MmfPaths, user_dir: Path, mmfw: MmfwRunner
) -> None:
    (world.dataset.root / "SHA256SUMS.json").unlink()
    DAMAGES["an image changed"](world)
    assert "--source" in mmfw("repair", "dataset", code=3)
    mmfw("repair", "dataset", "--source", user_dir / "memes.zip")
    mmfw("verify", "dataset", "--full")


def test_missing_password_does_not_prevent_other_repairs(world: MmfPaths, user_dir: Path, mmfw: MmfwRunner) -> None:
    convert(make_encrypted_zip(user_dir / "memes.zip", dataset_files()), world, ask=lambda: PASSWORD, force=True)
    DAMAGES["an image changed"](world)
    DAMAGES["features cut off"](world)
    mmfw("repair", code=4)
    mmfw("verify", "features")
    mmfw("verify", "dataset", code=3)
    mmfw("repair", "--password", PASSWORD)


@pytest.mark.parametrize("source_kind", ["the archive", "its folder"])
def test_moved_archive_is_named(world: MmfPaths, user_dir: Path, source_kind: str, mmfw: MmfwRunner) -> None:
    DAMAGES["an image changed"](world)
    DAMAGES["features cut off"](world)
    copy_dir = user_dir / "copy of the archives"
    copy_dir.mkdir()
    for name in ("memes.zip", "features.tar.gz"):
        (user_dir / name).rename(copy_dir / name)
    mmfw("repair", code=3)
    errors = mmfw.err
    assert "memes.zip was moved or deleted" in errors and "features.tar.gz" in errors
    assert "--source" in errors
    if source_kind == "its folder":
        mmfw("repair", "--source", copy_dir)
    else:
        mmfw("repair", "dataset", "--source", copy_dir / "memes.zip")
        mmfw("repair", "features", "--source", copy_dir / "features.tar.gz")
    mmfw("verify")


def test_features_without_their_archive_are_replaced_from_another_one(
    empty_paths: MmfPaths, user_dir: Path, mmfw: MmfwRunner
) -> None:
    other_paths = MmfPaths.resolve(user_dir / "elsewhere")
    archive = user_dir / "features.tar.gz"
    archive.write_bytes(tar_gz({"detectron.lmdb/data.mdb": bytes(range(256)) * 64}))
    extract_features(archive, other_paths, version=None)
    hostile_archives.truncate_file(other_paths.dataset.features / "detectron.lmdb/data.mdb")
    other_archive = archive.rename(user_dir / "other.tar.gz")
    folder_options = ["--data-dir", str(other_paths.data_dir)]
    mmfw("repair", "features", *folder_options, code=3)
    [command] = re.findall("`mmfw (features extract .*?)`", mmfw.err)
    mmfw(*[{"ARCHIVE": str(other_archive)}.get(word, word) for word in split_command(command)])
    mmfw("verify", "features", *folder_options)


def test_another_archive_is_refused_and_the_other_parts_are_repaired(
    world: MmfPaths, user_dir: Path, mmfw: MmfwRunner
) -> None:
    DAMAGES["an image changed"](world)
    DAMAGES["a file of MMF is missing"](world)
    files = {name: b"another" if name.endswith("00003.png") else data for name, data in dataset_files().items()}
    other_archive = hostile_archives.write_zip(user_dir / "other.zip", files)
    image = (world.dataset.images / "img/00003.png").read_bytes()
    assert "dataset" in mmfw("repair", "--source", other_archive, code=3)
    assert (world.dataset.images / "img/00003.png").read_bytes() == image
    mmfw("verify", "mmf")


def test_unpublished_file_must_be_restored_by_the_user(empty_paths: MmfPaths, user_dir: Path, mmfw: MmfwRunner) -> None:
    folder = write_tree({"model.pth": b"x" * 100}, empty_paths.data_dir / "models" / "mine")
    record_hashes(folder, ["model.pth"])
    hostile_archives.truncate_file(folder / "model.pth")
    assert "put an intact copy there" in mmfw("repair", code=3)
    (folder / "model.pth").write_bytes(b"x" * 100)
    mmfw("verify")


def test_removed_checkout_is_reported_with_a_hint(empty_paths: MmfPaths, user_dir: Path, mmfw: MmfwRunner) -> None:
    write_tree({"mmf/version.py": b'__version__ = "1.0.0rc12"\n', "mmf_cli/run.py": b""}, user_dir / "mmf")
    use_checkout(user_dir / "mmf")
    shutil.rmtree(user_dir / "mmf")
    mmfw("verify", code=3)
    mmfw(*parse_hint(mmfw.err), code=3)
    errors = mmfw.err
    assert str(user_dir / "mmf") in errors and "mmfw setup --mmf pypi" in errors
