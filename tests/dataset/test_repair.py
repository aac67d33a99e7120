"""Repair of damaged and missing files of the dataset, without changing others."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.dataset.convert import convert, repair_dataset
from mmf_win.errors import ArchiveError, DatasetError, PasswordError
from mmf_win.paths import DatasetPaths, MmfPaths
from tests.dataset.conftest import verify_dataset
from tests.worlds import hostile_archives
from tests.worlds.extractions import record_written_names
from tests.worlds.memes import (
    PASSWORD,
    PHASE_1_SPLITS,
    dataset_files,
    mmf_layout,
    read_tree,
    tar_gz,
    with_packed_images,
    without_images,
    write_tree,
)

IMAGE = "images/img/00003.png"
DAMAGED = ["annotations/dev_seen.jsonl", "annotations/train.jsonl", IMAGE, "images/img/00004.png"]


def damage(dataset: DatasetPaths) -> None:
    """Damage two files and remove two."""
    hostile_archives.flip_byte(dataset.root / IMAGE, 100)
    hostile_archives.truncate_file(dataset.annotation_file("train"))
    (dataset.root / "images/img/00004.png").unlink()
    dataset.annotation_file("dev_seen").unlink()


def repair(mmf_paths: MmfPaths, archive: Path | None = None) -> list[str]:
    return repair_dataset(mmf_paths, archive, ask=lambda: PASSWORD)


def test_only_damaged_files_are_rewritten(archive: Path, mmf_paths: MmfPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert repair(mmf_paths) == []
    damage(mmf_paths.dataset)
    written = record_written_names(monkeypatch)
    assert repair(mmf_paths) == DAMAGED
    assert [name for name in written if name.endswith(".png")] == ["00003.png", "00004.png"]
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())
    assert verify_dataset(mmf_paths.dataset, full=True) == []
    assert convert(archive, mmf_paths).already_done


def test_converting_the_same_archive_repairs_too(archive: Path, mmf_paths: MmfPaths) -> None:
    first = convert(archive, mmf_paths, ask=lambda: PASSWORD)
    damage(mmf_paths.dataset)
    second = convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert (second.already_done, second.splits) == (False, first.splits)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())


def test_repair_reads_packed_images_tar_and_folder(user_dir: Path, mmf_paths: MmfPaths) -> None:
    (user_dir / "a.tar.gz").write_bytes(tar_gz(dataset_files()))
    zip_file = hostile_archives.write_zip(user_dir / "a.zip", with_packed_images(dataset_files()))
    for source in (zip_file, user_dir / "a.tar.gz", write_tree(dataset_files(), user_dir / "unpacked")):
        convert(source, mmf_paths, force=True)
        damage(mmf_paths.dataset)
        assert repair(mmf_paths) == DAMAGED
        assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())


def test_excluded_memes_stay_excluded(user_dir: Path, mmf_paths: MmfPaths) -> None:
    archive = hostile_archives.write_zip(user_dir / "a.zip", without_images(dataset_files(), [1, 8]))
    convert(archive, mmf_paths, allow_missing=True)
    before = read_tree(mmf_paths.dataset.root)
    damage(mmf_paths.dataset)
    assert repair(mmf_paths) == DAMAGED
    assert read_tree(mmf_paths.dataset.root) == before


def test_user_annotations_and_features_are_kept(archive: Path, mmf_paths: MmfPaths) -> None:
    convert(archive, mmf_paths, ask=lambda: PASSWORD)
    user_files = {"annotations/mine.jsonl": b"{}", "features/detectron.lmdb/data.mdb": b"x", "images/img/x.png": b"x"}
    write_tree(user_files, mmf_paths.dataset.root)
    damage(mmf_paths.dataset)
    repair(mmf_paths)
    assert read_tree(mmf_paths.dataset.root) == {**mmf_layout(dataset_files()), **user_files}


def test_another_archive_repairs_nothing(archive: Path, user_dir: Path, mmf_paths: MmfPaths) -> None:
    convert(archive, mmf_paths, ask=lambda: PASSWORD)
    damage(mmf_paths.dataset)
    before = read_tree(mmf_paths.dataset.root)
    with pytest.raises(ArchiveError, match="contains no annotations/dev_seen"):
        repair(mmf_paths, hostile_archives.write_zip(user_dir / "old.zip", dataset_files(PHASE_1_SPLITS)))
    files = {**dataset_files(), "hateful_memes/img/00003.png": b"other"}
    with pytest.raises(ArchiveError, match=f"contains different content for {IMAGE}"):
        repair(mmf_paths, hostile_archives.write_zip(user_dir / "other.zip", files))
    with pytest.raises(PasswordError):
        repair_dataset(mmf_paths, ask=lambda: "wrong")
    assert read_tree(mmf_paths.dataset.root) == before


def test_dataset_without_a_conversion_cannot_be_repaired(mmf_paths: MmfPaths) -> None:
    with pytest.raises(DatasetError, match="without a manifest"):
        repair(mmf_paths)
