"""The manifest of a converted dataset, and the dataset verified by it."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

from mmf_win.dataset.convert import convert
from mmf_win.integrity.finding import Difference
from mmf_win.integrity.manifest import SUMS, Manifest
from mmf_win.paths import DatasetPaths, Places
from tests.worlds import hostile
from tests.worlds.converted import verify_dataset
from tests.worlds.memes import PHASE_1, laid_out, lay_out, memes
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
