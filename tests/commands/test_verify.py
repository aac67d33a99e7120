"""``mmfw verify`` as a user types it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mmf_win.cli import main
from mmf_win.dataset.convert import convert
from mmf_win.dataset.features import extract_features
from mmf_win.inputs.ledger import Ledger
from mmf_win.integrity import record
from mmf_win.paths import Places
from mmf_win.runs.folder import Run
from mmf_win.unpacking.extract import extract_verified
from mmf_win.upstream.install import find, install, use_checkout
from tests.worlds import hostile
from tests.worlds.memes import lay_out, memes, tar_gz
from tests.worlds.mmf_sources import TREE, Server, github, send
from tests.worlds.mmf_sources import tar_gz as mmf_archive
from tests.worlds.torch_files import checkpoint

LONG_AGO = 1_600_000_000


@pytest.fixture
def places(home: Path, user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Folders of MMF's in which there is nothing, and no MMF."""
    monkeypatch.setenv("MMF_CACHE_DIR", str(user_dir / "cache"))
    monkeypatch.setenv("MMF_SAVE_DIR", str(user_dir / "save"))
    return Places.resolve()


@pytest.fixture
def world(places: Places, user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """One of everything that mmfw writes, long ago."""
    convert(hostile.plain_zip(user_dir / "memes.zip", memes()), places)
    archive = user_dir / "features.tar.gz"
    archive.write_bytes(tar_gz({"detectron.lmdb/data.mdb": bytes(range(256)) * 64}))
    extract_features(archive, places, version=None)
    weights = user_dir / "visual_bert.tar.gz"
    weights.write_bytes(tar_gz({"model.pth": b"weights " * 1000}))
    extract_verified(weights, places.data_dir / "models" / "visual_bert")
    make_run(places)
    with Server.answering(send(mmf_archive(TREE))) as server:
        source = github(server.url)
        install(source)
    monkeypatch.setattr("mmf_win.upstream.install.SOURCES", (source,))
    for file in user_dir.rglob("*"):
        os.utime(file, (LONG_AGO, LONG_AGO))
    return places


def make_run(places: Places) -> Run:
    run = Run(places.save_dir / "mmbt_grid" / "2026-01-01T00-00-00")
    checkpoint(run.checkpoints / "best.ckpt", 10)
    checkpoint(run.checkpoints / "current.ckpt", 20)
    run.request_file.write_text("{}", encoding="utf-8")
    return run


def verified(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """By what it is, what is said of each part."""
    capsys.readouterr()
    assert main(["verify", "--json", *arguments]) == code
    return {part["what"]: part for part in json.loads(capsys.readouterr().out)}


def states(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {what.split()[0]: part["state"] for what, part in found.items()}


def test_where_nothing_was_written_nothing_is_wrong(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify"]) == 0
    assert "nothing to verify yet" in capsys.readouterr().err
    assert verified(capsys) == {}
    assert not places.data_dir.exists(), "looking must not make anything"


def test_everything_is_compared_with_what_vouches_for_it(
    world: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([], ["--full"]):
        found = verified(capsys, *arguments)
        assert {what: (part["state"], part["against"]) for what, part in found.items()} == {
            "dataset": ("ok", "the archive memes.zip"),
            "features": ("ok", "the archive features.tar.gz"),
            "models/visual_bert": ("ok", "the archive visual_bert.tar.gz"),
            "run mmbt_grid/2026-01-01T00-00-00": ("ok", "the checksums that torch wrote"),
            f"MMF {find().version}": ("ok", f"commit {str(find().commit)[:12]}"),
        }


def test_what_is_broken_is_named_with_what_mends_it(
    world: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    image = world.dataset.images / "img/00003.png"
    hostile.flip_byte(image, 100)
    hostile.cut(world.dataset.features / "detectron.lmdb/data.mdb")
    (world.data_dir / "models/visual_bert/model.pth").unlink()
    hostile.cut(world.save_dir / "mmbt_grid/2026-01-01T00-00-00/checkpoints/current.ckpt")
    (find().root / "mmf.txt").unlink()
    found = verified(capsys, code=3)
    assert {what.split()[0]: (part["problems"], part["cure"]) for what, part in found.items()} == {
        "dataset": (["changed: images/img/00003.png (other content)"], "mmfw convert --zip memes.zip"),
        "features": (
            ["changed: detectron.lmdb/data.mdb (8192 instead of 16384 bytes)"],
            "mmfw features repair",
        ),
        "models/visual_bert": (["missing: model.pth"], "mmfw features repair"),
        "run": (
            ["current.ckpt: it is cut off or not a checkpoint"],
            "delete these files; `mmfw train --resume last` goes on from the newest that is whole",
        ),
        "MMF": (["missing: mmf.txt"], "mmfw setup"),
    }
    assert set(states(found).values()) == {"broken"}

    assert main(["verify"]) == 3
    told = capsys.readouterr()
    assert told.out.count(" broken ") == 5
    for part in found.values():
        assert f"{part['what']}: {part['problems'][0]}" in told.err
        assert f"cure: {part['cure']}" in told.err
    assert "error: 5 of 5 are broken" in told.err


def test_a_long_list_is_cut_short(world: Places, capsys: pytest.CaptureFixture[str]) -> None:
    for image in (world.dataset.images / "img").iterdir():
        image.unlink()
    assert main(["verify"]) == 3
    told = capsys.readouterr().err
    assert told.count("dataset: missing: ") == 10
    assert "dataset: and 6 more" in told


def test_what_was_put_there_by_another_hand_is_not_vouched_for(
    places: Places, user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out({"annotations/train.jsonl": b"", "features/detectron.lmdb/data.mdb": b"x"}, places.dataset.root)
    folder = lay_out({"model.pth": b"x"}, places.data_dir / "models" / "mine")
    record(folder, ["model.pth"])
    lay_out({"mmf/version.py": b'__version__ = "1.0.0rc12"\n', "mmf_cli/run.py": b""}, user_dir / "mmf")
    use_checkout(user_dir / "mmf")
    found = verified(capsys)
    assert states(found) == dict.fromkeys(("dataset", "features", "models/mine", "MMF"), "not vouched for")
    assert found["models/mine"]["against"] == "its first reading"


def test_what_runs_have_read_in_caches_of_others_is_verified_by_its_names(
    places: Places, user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = b"weights" * 1000
    weights = user_dir / f"resnet152-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    weights.write_bytes(content)
    Ledger(places).verify([weights])
    part = verified(capsys)["BERT, ResNet and the like"]
    assert (part["state"], part["against"]) == ("ok", "the hashes in their names")
    hostile.flip_byte(weights, 100)
    part = verified(capsys, code=3)["BERT, ResNet and the like"]
    assert part["problems"] == [f"changed: {weights} (not what its name says)"]
    assert part["cure"] == "mmfw features repair"
    weights.unlink()
    assert verified(capsys) == {}


def test_a_damaged_list_of_hashes_is_said_so(world: Places, capsys: pytest.CaptureFixture[str]) -> None:
    sums = world.dataset.features / "SHA256SUMS"
    sums.write_text("nonsense\n", encoding="utf-8")
    part = verified(capsys, code=3)["features"]
    assert part["problems"] == [f"{sums}:1: not a line of sha256sum"]
    assert "delete it" in part["cure"]


def test_another_data_folder_stands_in_the_cure(
    world: Places, user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = Places.resolve(user_dir / "elsewhere")
    convert(user_dir / "memes.zip", elsewhere)
    elsewhere.dataset.split("train").unlink()
    cure = verified(capsys, "--data-dir", str(elsewhere.data_dir), code=3)["dataset"]["cure"]
    assert cure.startswith("mmfw convert --zip memes.zip --data-dir ")
    assert "elsewhere" in cure


def test_a_read_only_dataset_is_verified_without_its_manifest(
    places: Places, small_disk: Path, user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Places.resolve(small_disk / "data")
    convert(hostile.plain_zip(user_dir / "memes.zip", memes()), there)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert states(verified(capsys, "--data-dir", str(there.data_dir))) == {"dataset": "ok"}
