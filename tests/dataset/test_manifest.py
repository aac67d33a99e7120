"""The manifest of a converted dataset, and the dataset verified by it, also one of mmfw 0.1.0."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from mmf_win.dataset.convert import convert
from mmf_win.dataset.coverage import Coverage, coverage
from mmf_win.dataset.manifest import load_manifest
from mmf_win.dataset.repair import repair_dataset
from mmf_win.errors import ArchiveError
from mmf_win.files import read_json, write_json
from mmf_win.integrity.finding import Difference
from mmf_win.integrity.manifest import SUMS, Manifest
from mmf_win.paths import DatasetPaths, Places
from tests.worlds import hostile
from tests.worlds.converted import verify_dataset
from tests.worlds.memes import PHASE_1, laid_out, lay_out, memes, tree, without_images
from tests.worlds.old_record import converted_by_0_1_0
from tests.worlds.tools import call, requires_tool

IMAGE = "images/img/00003.png"
WRONG = Difference("changed", IMAGE, "other content")
LONG_AGO = 1_600_000_000


@pytest.fixture
def archive(user_dir: Path) -> Path:
    """An archive that was made long ago."""
    path = hostile.plain_zip(user_dir / "memes.zip", memes())
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


@pytest.fixture
def dataset(archive: Path, places: Places) -> DatasetPaths:
    convert(archive, places)
    return places.dataset


@requires_tool("sha256sum")
def test_a_conversion_writes_the_manifest(dataset: DatasetPaths, archive: Path) -> None:
    manifest = Manifest.load(dataset.root)
    assert manifest is not None and manifest.source is not None
    assert (manifest.basis, manifest.verified_against) == ("archive", "the archive memes.zip")
    assert manifest.source.path == str(archive)
    assert manifest.files.keys() == laid_out(memes()).keys()
    call("sha256sum", "--check", "--strict", "--quiet", SUMS, cwd=dataset.root)


def test_what_was_just_converted_is_not_read_again(
    dataset: DatasetPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotations = [name for name in laid_out(memes()) if name.startswith("annotations/")]
    verify_dataset(dataset, only=lambda name: name in annotations)  # written as late as they were checked
    monkeypatch.setattr(import_module("mmf_win.integrity.verify"), "file_digest", None)
    assert verify_dataset(dataset, only=lambda name: name not in annotations) == []


def test_what_was_changed_is_found(dataset: DatasetPaths) -> None:
    hostile.flip_byte(dataset.root / IMAGE, 100)
    whole = dataset.split("train").stat().st_size
    size = hostile.cut(dataset.split("train")).stat().st_size
    for _ in range(2):
        assert verify_dataset(dataset) == [
            Difference("changed", "annotations/train.jsonl", f"{size} instead of {whole} bytes"),
            WRONG,
        ]
    assert verify_dataset(dataset, only=lambda name: name == IMAGE) == [WRONG]
    assert verify_dataset(dataset, only=lambda name: name == "annotations/dev_seen.jsonl", full=True) == []


def test_a_dataset_that_was_a_folder_is_merely_recorded(user_dir: Path, places: Places) -> None:
    convert(lay_out(memes(), user_dir / "unpacked"), places)
    assert verify_dataset(places.dataset) == []
    manifest = Manifest.load(places.dataset.root)
    assert manifest is not None and manifest.basis == "recorded"


def test_another_conversion_replaces_the_manifest(
    dataset: DatasetPaths, user_dir: Path, places: Places
) -> None:
    convert(hostile.plain_zip(user_dir / "old.zip", memes(PHASE_1)), places, force=True)
    manifest = Manifest.load(dataset.root)
    assert manifest is not None and manifest.files.keys() == laid_out(memes(PHASE_1)).keys()
    assert verify_dataset(dataset) == []


def test_what_nobody_converted_is_not_known(places: Places) -> None:
    assert verify_dataset(places.dataset) is None


# --- datasets that mmfw 0.1.0 has converted ----------------------------------------------------------------


@pytest.mark.parametrize("verified", [False, True])
def test_a_dataset_of_mmfw_0_1_0_stays_valid(
    verified: bool, dataset: DatasetPaths, archive: Path, places: Places
) -> None:
    manifest = load_manifest(dataset)
    assert manifest is not None
    converted_by_0_1_0(dataset, verified=verified)
    assert coverage(dataset, "train") == Coverage("train", 6, 6)
    assert load_manifest(dataset) == manifest == replace(manifest, result={**manifest.result})
    assert convert(archive, places).already_done
    assert not dataset.old_record.exists(), "there must not be two truths"
    hostile.flip_byte(dataset.root / IMAGE, 100)
    assert verify_dataset(dataset) == [WRONG]


def test_what_was_damaged_before_is_found_and_repaired(
    dataset: DatasetPaths, archive: Path, places: Places
) -> None:
    converted_by_0_1_0(dataset)
    hostile.flip_byte(dataset.root / IMAGE, 100)
    dataset.split("dev_seen").unlink()
    for _ in range(2):
        assert verify_dataset(dataset) == [Difference("missing", "annotations/dev_seen.jsonl"), WRONG]
    other = hostile.plain_zip(archive.with_name("other.zip"), memes() | {"hateful_memes/more.txt": b"more"})
    with pytest.raises(ArchiveError, match="other content"):
        repair_dataset(places, other)
    assert not convert(archive, places).already_done
    assert tree(dataset.root) == laid_out(memes())
    assert verify_dataset(dataset, full=True) == []


def test_memes_that_mmfw_0_1_0_left_out_stay_left_out(user_dir: Path, places: Places) -> None:
    convert(hostile.plain_zip(user_dir / "a.zip", without_images(memes(), [1])), places, allow_missing=True)
    converted_by_0_1_0(places.dataset)
    assert coverage(places.dataset, "train") == Coverage("train", 5, 6)


def test_on_a_read_only_disk_it_is_verified_each_time(small_disk: Path, user_dir: Path) -> None:
    there = Places.resolve(small_disk / "data")
    convert(hostile.plain_zip(user_dir / "memes.zip", memes()), there)
    converted_by_0_1_0(there.dataset)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert verify_dataset(there.dataset) == []
    assert there.dataset.old_record.exists()


@pytest.mark.parametrize("record", [{}, {"format": 1, "files": {IMAGE: 5}}, [], {"format": 2, "files": 7}])
def test_a_record_that_cannot_be_understood_is_none(dataset: DatasetPaths, record: object) -> None:
    write_json(dataset.old_record, record)
    manifest = load_manifest(dataset)
    assert manifest is not None and manifest == Manifest.load(dataset.root)
    assert read_json(dataset.old_record) == record
