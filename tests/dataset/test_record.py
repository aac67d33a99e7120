"""What a conversion remembers of its files, and the dataset verified by that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mmf_win.dataset.convert import convert
from mmf_win.dataset.record import Record, verify_dataset
from mmf_win.files import read_json, write_json
from mmf_win.integrity import SUMS, Difference, Manifest
from mmf_win.paths import DatasetPaths, Places
from tests.worlds import hostile
from tests.worlds.memes import PHASE_1, lay_out, memes
from tests.worlds.tools import call, requires_tool

IMAGE = "images/img/00003.png"
WRONG = Difference("changed", IMAGE, "other content")
LONG_AGO = 1_600_000_000


@pytest.fixture
def places(user_dir: Path) -> Places:
    return Places.resolve(user_dir / "data dir", user_dir / "save", environ={})


@pytest.fixture
def archive(user_dir: Path) -> Path:
    return hostile.plain_zip(user_dir / "memes.zip", memes())


@pytest.fixture
def dataset(archive: Path, places: Places) -> DatasetPaths:
    """A dataset that was converted long ago."""
    convert(archive, places)
    for file in places.dataset.root.rglob("*"):
        os.utime(file, (LONG_AGO, LONG_AGO))
    return places.dataset


def before_checksums(dataset: DatasetPaths) -> None:
    """Make the record one of an earlier mmfw, which had the sizes only."""
    value = read_json(dataset.record)
    value["files"] = {name: size for name, (size, _) in value["files"].items()}
    write_json(dataset.record, {**value, "format": 1})


def test_a_conversion_hashes_no_image(dataset: DatasetPaths) -> None:
    assert Manifest.load(dataset.root) is None
    record = Record.load(dataset.record)
    assert record is not None and record.broken_files(dataset.root) == []
    assert record.files[IMAGE].crc32 is not None


@requires_tool("sha256sum")
def test_the_first_verification_writes_the_manifest(dataset: DatasetPaths) -> None:
    assert verify_dataset(dataset) == []
    manifest = Manifest.load(dataset.root)
    record = Record.load(dataset.record)
    assert manifest is not None and record is not None
    assert (manifest.basis, manifest.source) == ("archive", record.source)
    assert manifest.files.keys() == record.files.keys()
    call("sha256sum", "--check", "--strict", "--quiet", SUMS, cwd=dataset.root)


def test_the_second_verification_reads_nothing(
    dataset: DatasetPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_dataset(dataset)
    monkeypatch.setattr("mmf_win.integrity.parallel.file_digest", None)
    assert verify_dataset(dataset) == []


def test_what_was_changed_before_the_first_verification_is_found(dataset: DatasetPaths) -> None:
    hostile.flip_byte(dataset.root / IMAGE, 100)
    whole = dataset.split("train").stat().st_size
    size = hostile.cut(dataset.split("train")).stat().st_size
    for _ in range(2):
        found = verify_dataset(dataset)
        assert found is not None
        assert sorted(found, key=lambda difference: difference.path) == [
            Difference("changed", "annotations/train.jsonl", f"{size} instead of {whole} bytes"),
            WRONG,
        ]
    assert Manifest.load(dataset.root) is None
    assert verify_dataset(dataset, only=lambda name: name == IMAGE) == [WRONG]


def test_what_was_changed_later_is_found(dataset: DatasetPaths) -> None:
    verify_dataset(dataset)
    hostile.flip_byte(dataset.root / IMAGE, 100)
    assert verify_dataset(dataset) == [WRONG]
    assert verify_dataset(dataset, only=lambda name: name.startswith("annotations/")) == []
    assert verify_dataset(dataset, full=True) == [WRONG]


def test_a_dataset_of_an_earlier_mmfw_stays_valid(
    dataset: DatasetPaths, archive: Path, places: Places
) -> None:
    before_checksums(dataset)
    assert convert(archive, places).already_done
    assert verify_dataset(dataset) == []
    manifest = Manifest.load(dataset.root)
    assert manifest is not None and manifest.basis == "recorded"
    hostile.flip_byte(dataset.root / IMAGE, 100)
    assert verify_dataset(dataset) == [WRONG]


def test_nothing_vouches_for_a_dataset_that_was_a_folder(user_dir: Path, places: Places) -> None:
    convert(lay_out(memes(), user_dir / "unpacked"), places)
    assert verify_dataset(places.dataset) == []
    manifest = Manifest.load(places.dataset.root)
    assert manifest is not None and manifest.basis == "recorded"


def test_another_conversion_takes_the_manifest_away(
    dataset: DatasetPaths, user_dir: Path, places: Places
) -> None:
    verify_dataset(dataset)
    convert(hostile.plain_zip(user_dir / "old.zip", memes(PHASE_1)), places, force=True)
    assert Manifest.load(dataset.root) is None
    assert verify_dataset(dataset) == []


def test_what_nobody_converted_is_not_known(places: Places) -> None:
    assert verify_dataset(places.dataset) is None
