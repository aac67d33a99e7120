"""Damaged and missing files of the dataset are written anew, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.dataset.convert import convert, repair_dataset
from mmf_win.errors import ArchiveError, DatasetError, PasswordError
from mmf_win.paths import DatasetPaths, MmfPaths
from tests.dataset.conftest import verify_dataset
from tests.worlds import hostile
from tests.worlds.extractions import noted
from tests.worlds.memes import (
    PASSWORD,
    PHASE_1,
    laid_out,
    lay_out,
    memes,
    tar_gz,
    tree,
    with_packed_images,
    without_images,
)

IMAGE = "images/img/00003.png"
DAMAGED = ["annotations/dev_seen.jsonl", "annotations/train.jsonl", IMAGE, "images/img/00004.png"]


def damage(dataset: DatasetPaths) -> None:
    """Damage two files and remove two."""
    hostile.flip_byte(dataset.root / IMAGE, 100)
    hostile.cut(dataset.annotation_file("train"))
    (dataset.root / "images/img/00004.png").unlink()
    dataset.annotation_file("dev_seen").unlink()


def repaired(places: MmfPaths, archive: Path | None = None) -> list[str]:
    return repair_dataset(places, archive, ask=lambda: PASSWORD)


def test_only_what_is_wrong_is_written(
    archive: Path, places: MmfPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(archive, places, ask=lambda: PASSWORD)
    assert repaired(places) == []
    damage(places.dataset)
    written = noted(monkeypatch)
    assert repaired(places) == DAMAGED
    assert [name for name in written if name.endswith(".png")] == ["00003.png", "00004.png"]
    assert tree(places.dataset.root) == laid_out(memes())
    assert verify_dataset(places.dataset, full=True) == []
    assert convert(archive, places).already_done


def test_converting_the_same_archive_repairs_too(archive: Path, places: MmfPaths) -> None:
    first = convert(archive, places, ask=lambda: PASSWORD)
    damage(places.dataset)
    again = convert(archive, places, ask=lambda: PASSWORD)
    assert (again.already_done, again.splits) == (False, first.splits)
    assert tree(places.dataset.root) == laid_out(memes())


def test_packed_images_a_tar_and_a_folder(user_dir: Path, places: MmfPaths) -> None:
    (user_dir / "a.tar.gz").write_bytes(tar_gz(memes()))
    packed = hostile.plain_zip(user_dir / "a.zip", with_packed_images(memes()))
    for source in (packed, user_dir / "a.tar.gz", lay_out(memes(), user_dir / "unpacked")):
        convert(source, places, force=True)
        damage(places.dataset)
        assert repaired(places) == DAMAGED
        assert tree(places.dataset.root) == laid_out(memes())


def test_memes_that_were_left_out_stay_left_out(user_dir: Path, places: MmfPaths) -> None:
    archive = hostile.plain_zip(user_dir / "a.zip", without_images(memes(), [1, 8]))
    convert(archive, places, allow_missing=True)
    before = tree(places.dataset.root)
    damage(places.dataset)
    assert repaired(places) == DAMAGED
    assert tree(places.dataset.root) == before


def test_annotations_and_features_of_the_user_stay(archive: Path, places: MmfPaths) -> None:
    convert(archive, places, ask=lambda: PASSWORD)
    own = {
        "annotations/mine.jsonl": b"{}",
        "features/detectron.lmdb/data.mdb": b"x",
        "images/img/x.png": b"x",
    }
    lay_out(own, places.dataset.root)
    damage(places.dataset)
    repaired(places)
    assert tree(places.dataset.root) == {**laid_out(memes()), **own}


def test_another_archive_repairs_nothing(archive: Path, user_dir: Path, places: MmfPaths) -> None:
    convert(archive, places, ask=lambda: PASSWORD)
    damage(places.dataset)
    before = tree(places.dataset.root)
    with pytest.raises(ArchiveError, match="there is no annotations/dev_seen"):
        repaired(places, hostile.plain_zip(user_dir / "old.zip", memes(PHASE_1)))
    files = {**memes(), "hateful_memes/img/00003.png": b"other"}
    with pytest.raises(ArchiveError, match=f"other content in {IMAGE}"):
        repaired(places, hostile.plain_zip(user_dir / "other.zip", files))
    with pytest.raises(PasswordError):
        repair_dataset(places, ask=lambda: "wrong")
    assert tree(places.dataset.root) == before


def test_what_nobody_converted_cannot_be_repaired(places: MmfPaths) -> None:
    with pytest.raises(DatasetError, match="nothing tells"):
        repaired(places)
