"""``mmfw repair`` as a user types it, after each damage that ``mmfw verify`` finds."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmf_win.cli import main
from mmf_win.dataset.convert import convert
from mmf_win.dataset.features import extract_features
from mmf_win.errors import DamagedManifest
from mmf_win.integrity.manifest import Manifest, manifest_files
from mmf_win.integrity.verify import record_hashes
from mmf_win.paths import DatasetPaths, Places
from mmf_win.upstream.install import find_mmf, use_checkout
from tests.worlds import hostile
from tests.worlds.memes import PASSWORD, encrypted_zip, laid_out, lay_out, memes, tar_gz, tree
from tests.worlds.tools import typed

RUN = Path("mmbt_grid/2026-01-01T00-00-00/checkpoints")

DAMAGES: dict[str, Callable[[Places], Any]] = {
    "an image changed": lambda p: hostile.flip_byte(p.dataset.images / "img/00003.png", 100),
    "an image is missing": lambda p: (p.dataset.images / "img/00004.png").unlink(),
    "annotations cut off": lambda p: hostile.cut(p.dataset.split("train")),
    "the hashes changed": lambda p: hostile.flip_byte(p.dataset.root / "SHA256SUMS", 1),
    "the hashes cut off": lambda p: hostile.cut(p.dataset.root / "SHA256SUMS"),
    "the hashes are missing": lambda p: (p.dataset.root / "SHA256SUMS").unlink(),
    "the hashes are emptied": lambda p: os.truncate(p.dataset.root / "SHA256SUMS", 0),
    "killed amidst the moves, whose list is emptied": lambda p: killed_amidst_the_moves(p.dataset),
    "features cut off": lambda p: hostile.cut(p.dataset.features / "detectron.lmdb/data.mdb"),
    "features are missing": lambda p: (p.dataset.features / "detectron.lmdb/data.mdb").unlink(),
    "their hashes changed": lambda p: hostile.flip_byte(p.dataset.features / "SHA256SUMS", 1),
    "their hashes cut off": lambda p: hostile.cut(p.dataset.features / "SHA256SUMS"),
    "weights with a cut list": lambda p: hostile.cut(p.data_dir / "models/visual_bert/SHA256SUMS"),
    "weights changed": lambda p: hostile.flip_byte(p.data_dir / "models/visual_bert/model.pth", 100),
    "a file of MMF is missing": lambda p: (find_mmf().root / "mmf.txt").unlink(),
    "a file of MMF changed": lambda p: hostile.flip_byte(find_mmf().root / "mmf_cli/run.py", 3),
    "all hashes of MMF are gone": lambda p: [file.unlink() for file in manifest_files(find_mmf().root)],
    "MMF is gone": lambda p: shutil.rmtree(find_mmf().root),
}


def killed_amidst_the_moves(paths: DatasetPaths) -> None:
    paths.split("dev_seen").unlink()
    (paths.root / ".mmfw-staging").mkdir()
    (paths.root / ".mmfw-staging" / "installing").touch()


def hint(told: str) -> list[str]:
    """The arguments of the command in the last hint."""
    hints = re.findall("^hint: `mmfw (.*)`$", told, re.MULTILINE)
    return typed(hints[-1])


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_command_that_verify_names_repairs_it(
    world: Places, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES[damage](world)
    assert main(["verify"]) == 3
    command = hint(capsys.readouterr().err)
    assert command[0] == "repair"
    assert main(command) == 0, capsys.readouterr().err
    assert "repaired" in capsys.readouterr().err
    assert main(["verify", "--full"]) == 0
    assert tree(world.dataset.root).items() >= laid_out(memes()).items()


@pytest.mark.parametrize("command", ["verify", "repair"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--data-dir"], 2),
        (["runs", "--save-dir"], 2),
        (["dataset", "mmbt_grid/2026-01-01T00-00-00", "--save-dir"], 2),
        (["--save-dir"], 0),
        (["dataset", "--save-dir"], 0),
    ],
)
def test_a_folder_that_is_not_there_is_refused_where_it_alone_was_meant(
    world: Places,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    words: list[str],
    code: int,
) -> None:
    assert main([command, *words, str(tmp_path / "nowhere")]) == code
    said = capsys.readouterr().err
    assert code == 0 or "nowhere" in said or "no part, preset or run" in said
    assert not (tmp_path / "nowhere").exists()


def test_all_of_it_is_repaired_at_once_and_nothing_else_is_touched(
    world: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES["an image changed"](world)
    DAMAGES["weights changed"](world)
    DAMAGES["a file of MMF is missing"](world)
    untouched = world.dataset.images / "img/00005.png"
    before = untouched.stat().st_mtime_ns
    assert main(["verify"]) == 3
    capsys.readouterr()
    assert main(["repair", "--json"]) == 0
    found = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
    repaired = {what for what, finding in found.items() if finding["repaired"]}
    assert repaired == {"dataset", "models/visual_bert", "MMF 9.9.0"}
    assert {finding["state"] for finding in found.values()} == {"intact"}
    assert untouched.stat().st_mtime_ns == before
    assert main(["repair"]) == 0
    assert "nothing is damaged" in capsys.readouterr().err


def test_damage_that_only_a_full_reading_finds_is_repaired_afterwards(world: Places) -> None:
    assert main(["verify"]) == 0
    data = world.dataset.features / "detectron.lmdb/data.mdb"
    stat = data.stat()
    hostile.flip_byte(data, 100)
    os.utime(data, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert main(["verify", "--full"]) == 3
    assert main(["repair"]) == 0
    assert main(["verify", "--full"]) == 0


def test_a_damaged_checkpoint_cannot_be_repaired_and_nothing_is_deleted(
    world: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = world.save_dir / RUN
    hostile.cut(folder / "current.ckpt")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(["repair"]) == 3
    told = capsys.readouterr().err
    assert "current.ckpt: it is cut off" in told
    assert "the newest intact one is best.ckpt" in told and "mmfw train --resume last --save-dir" in told
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    hostile.cut(folder / "best.ckpt")
    assert main(["repair", "runs"]) == 3
    assert "no intact checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["repair dataset", "convert --zip"])
@pytest.mark.parametrize("damage", [what for what in DAMAGES if what.startswith("the hashes")])
def test_without_the_hashes_all_is_written_again_but_for_what_the_user_put_beside_it(
    world: Places, user_dir: Path, command: str, damage: str
) -> None:
    DAMAGES["an image changed"](world)
    DAMAGES[damage](world)
    own = [world.dataset.annotations / "dev_of_mine.jsonl", world.dataset.images / "img" / "mine.png"]
    for path in own:
        path.write_bytes(b"own")
    archive = [str(user_dir / "memes.zip")] if command.startswith("convert") else []
    assert main([*command.split(), *archive]) == 0
    assert main(["verify", "--full"]) == 0
    assert tree(world.dataset.root).items() >= laid_out(memes()).items()
    assert [path.read_bytes() for path in own] == [b"own", b"own"]


def test_without_the_hashes_and_the_archive_the_dataset_can_be_taken_as_it_is(
    world: Places, user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sums = world.dataset.root / "SHA256SUMS"
    DAMAGES["the hashes cut off"](world)
    (user_dir / "memes.zip").unlink()
    with pytest.raises(DamagedManifest):
        Manifest.load(world.dataset.root)
    assert main(["repair", "dataset"]) == 3
    assert f"delete {sums}" in capsys.readouterr().err
    sums.unlink()
    assert Manifest.load(world.dataset.root) is None


def test_without_any_record_an_archive_that_is_named_repairs_what_the_hashes_tell(
    world: Places, user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (world.dataset.root / "SHA256SUMS.json").unlink()
    DAMAGES["an image changed"](world)
    assert main(["repair", "dataset"]) == 3
    assert "--source" in capsys.readouterr().err
    assert main(["repair", "dataset", "--source", str(user_dir / "memes.zip")]) == 0
    assert main(["verify", "dataset", "--full"]) == 0


def test_a_missing_password_does_not_keep_the_rest_from_being_repaired(
    world: Places, user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(encrypted_zip(user_dir / "memes.zip", memes()), world, ask=lambda: PASSWORD, force=True)
    DAMAGES["an image changed"](world)
    DAMAGES["features cut off"](world)
    assert main(["repair"]) == 4
    assert main(["verify", "features"]) == 0
    assert main(["verify", "dataset"]) == 3
    assert main(["repair", "--password", PASSWORD]) == 0


@pytest.mark.parametrize("named", ["the archive", "its folder"])
def test_an_archive_that_was_moved_is_named(
    world: Places, user_dir: Path, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES["an image changed"](world)
    DAMAGES["features cut off"](world)
    stick = user_dir / "usb stick"
    stick.mkdir()
    for name in ("memes.zip", "features.tar.gz"):
        (user_dir / name).rename(stick / name)
    assert main(["repair"]) == 3
    told = capsys.readouterr().err
    assert "memes.zip is not where it was" in told and "features.tar.gz" in told
    assert "--source" in told
    if named == "its folder":
        assert main(["repair", "--source", str(stick)]) == 0
    else:
        assert main(["repair", "dataset", "--source", str(stick / "memes.zip")]) == 0
        assert main(["repair", "features", "--source", str(stick / "features.tar.gz")]) == 0
    assert main(["verify"]) == 0


def test_features_whose_archive_is_gone_are_replaced_by_another_where_they_lie(
    empty: Places, user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = Places.resolve(user_dir / "elsewhere")
    archive = user_dir / "features.tar.gz"
    archive.write_bytes(tar_gz({"detectron.lmdb/data.mdb": bytes(range(256)) * 64}))
    extract_features(archive, elsewhere, version=None)
    hostile.cut(elsewhere.dataset.features / "detectron.lmdb/data.mdb")
    other = archive.rename(user_dir / "other.tar.gz")
    where = ["--data-dir", str(elsewhere.data_dir)]
    assert main(["repair", "features", *where]) == 3
    [command] = re.findall("`mmfw (features extract .*?)`", capsys.readouterr().err)
    assert main([{"ARCHIVE": str(other)}.get(word, word) for word in typed(command)]) == 0
    assert main(["verify", "features", *where]) == 0


def test_another_archive_is_refused_and_the_rest_is_repaired(
    world: Places, user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES["an image changed"](world)
    DAMAGES["a file of MMF is missing"](world)
    files = {name: b"another" if name.endswith("00003.png") else data for name, data in memes().items()}
    other = hostile.plain_zip(user_dir / "other.zip", files)
    image = (world.dataset.images / "img/00003.png").read_bytes()
    assert main(["repair", "--source", str(other)]) == 3
    assert "dataset" in capsys.readouterr().err
    assert (world.dataset.images / "img/00003.png").read_bytes() == image
    assert main(["verify", "mmf"]) == 0


def test_a_file_that_nobody_publishes_has_to_be_put_there(
    empty: Places, user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = lay_out({"model.pth": b"x" * 100}, empty.data_dir / "models" / "mine")
    record_hashes(folder, ["model.pth"])
    hostile.cut(folder / "model.pth")
    assert main(["repair"]) == 3
    assert "put an intact copy there" in capsys.readouterr().err
    (folder / "model.pth").write_bytes(b"x" * 100)
    assert main(["verify"]) == 0


def test_a_checkout_of_the_users_own_that_is_gone_is_said_with_the_way_out(
    empty: Places, user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out({"mmf/version.py": b'__version__ = "1.0.0rc12"\n', "mmf_cli/run.py": b""}, user_dir / "mmf")
    use_checkout(user_dir / "mmf")
    shutil.rmtree(user_dir / "mmf")
    assert main(["verify"]) == 3
    assert main(hint(capsys.readouterr().err)) == 3
    told = capsys.readouterr().err
    assert str(user_dir / "mmf") in told and "mmfw setup --mmf pypi" in told
