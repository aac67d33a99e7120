"""Coverage of splits after real conversions of copies that lack images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmf_win.dataset.annotations import AnnotationFile
from mmf_win.dataset.convert import convert
from mmf_win.dataset.coverage import Coverage, load_coverage, load_split_summary
from mmf_win.errors import DamagedManifestError, DatasetError
from mmf_win.integrity.manifest import Manifest
from mmf_win.paths import DatasetPaths, MmfPaths
from tests.worlds import hostile_archives
from tests.worlds.memes import dataset_files, incomplete_dataset_files, mmf_layout, without_images, write_tree

LACKING = [1, 8, 9, 16]  # IDs in train, in both dev splits, only in dev_unseen, and in test_unseen


def coverage(dataset: DatasetPaths, split: str) -> Coverage:
    """Return the coverage of a split on disk."""
    return load_coverage(dataset, AnnotationFile(dataset.annotation_file(split)))


@pytest.fixture
def dataset(user_dir: Path, mmf_paths: MmfPaths) -> DatasetPaths:
    """Return a dataset that was converted from a copy without four of its images."""
    archive = hostile_archives.write_zip(user_dir / "copy.zip", without_images(dataset_files(), LACKING))
    convert(archive, mmf_paths, allow_missing=True)
    return mmf_paths.dataset


def test_coverage_of_a_typical_incomplete_copy_is_counted(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files, missing_ids = incomplete_dataset_files()
    result = convert(write_tree(files, user_dir / "copy"), mmf_paths, allow_missing=True)
    coverages = {split: str(coverage(mmf_paths.dataset, split)) for split in result.splits}
    assert coverages == {
        "train": "20 rows of train",
        "dev_seen": "398 of 500 rows of dev_seen",
        "dev_unseen": "433 of 540 rows of dev_unseen",
        "test_seen": "1,000 rows of test_seen",
        "test_unseen": "1,593 of 2,000 rows of test_unseen",
    }
    summaries = {
        split: load_split_summary(mmf_paths.dataset, AnnotationFile(mmf_paths.dataset.annotation_file(split)))
        for split in missing_ids
    }
    assert {split: [int(id_) for id_ in s.missing_ids] for split, s in summaries.items() if s} == missing_ids
    second = convert(user_dir / "copy", mmf_paths)
    assert second.already_done and second.splits == result.splits


def test_complete_copy_replaces_an_incomplete_one(dataset: DatasetPaths, user_dir: Path, mmf_paths: MmfPaths) -> None:
    assert coverage(dataset, "dev_seen") == Coverage("dev_seen", 1, 3)
    convert(hostile_archives.write_zip(user_dir / "complete.zip", dataset_files()), mmf_paths, force=True)
    assert coverage(dataset, "dev_seen") == Coverage("dev_seen", 3, 3)


@pytest.mark.parametrize("split", ["dev_seen", "dev_unseen"])
def test_coverage_of_a_changed_file_is_unknown(dataset: DatasetPaths, split: str) -> None:
    file = dataset.annotation_file(split)
    file.write_bytes(file.read_bytes().replace(b'"label": 1', b'"label": 0'))  # the size stays the same
    assert coverage(dataset, split).full_rows is None
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    assert coverage(dataset, split) == Coverage(split, 1, None)
    assert load_split_summary(dataset, AnnotationFile(dataset.annotation_file("test_unseen"))) is not None, (
        "the counts of other splits must be kept"
    )


def test_coverage_of_user_splits_and_unconverted_datasets_is_unknown(dataset: DatasetPaths, user_dir: Path) -> None:
    dataset.annotation_file("mine").write_bytes(dataset.annotation_file("dev_unseen").read_bytes())
    assert coverage(dataset, "mine") == Coverage("mine", 2, None)
    by_mmf = DatasetPaths(write_tree(mmf_layout(dataset_files()), user_dir / "by mmf itself"))
    assert coverage(by_mmf, "test_unseen") == Coverage("test_unseen", 3, None)
    with pytest.raises(DatasetError):
        coverage(by_mmf, "nobody")


@pytest.mark.parametrize("result", [{}, {"splits": {}}, {"splits": None}])
def test_coverage_is_unknown_if_the_result_lacks_the_split(dataset: DatasetPaths, result: dict[str, Any]) -> None:
    manifest = Manifest.load(dataset.root)
    assert manifest is not None
    replace(manifest, result=result).save()
    assert coverage(dataset, "dev_seen") == Coverage("dev_seen", 1, None)


def change_summary(paths: DatasetPaths, **values: object) -> None:
    """Change the recorded summary of dev_seen; None removes a field."""
    manifest = Manifest.load(paths.root)
    assert manifest is not None
    splits = manifest.result["splits"]
    summary = {name: value for name, value in (splits["dev_seen"] | values).items() if value is not None}
    replace(manifest, result={**manifest.result, "splits": {**splits, "dev_seen": summary}}).save()


def test_unknown_fields_of_a_later_version_are_ignored(
    dataset: DatasetPaths, user_dir: Path, mmf_paths: MmfPaths
) -> None:
    change_summary(dataset, of="a later mmfw")
    assert coverage(dataset, "dev_seen") == Coverage("dev_seen", 1, 3)
    assert convert(user_dir / "copy.zip", mmf_paths, allow_missing=True).already_done


@pytest.mark.parametrize(("field", "value"), [("missing", None), ("missing", "two"), ("rows", None)])
def test_record_without_a_required_field_is_an_error(
    dataset: DatasetPaths, user_dir: Path, mmf_paths: MmfPaths, field: str, value: object
) -> None:
    change_summary(dataset, **{field: value})
    for use in (lambda: coverage(dataset, "dev_seen"), lambda: convert(user_dir / "copy.zip", mmf_paths)):
        with pytest.raises(DamagedManifestError, match=rf"SHA256SUMS\.json: .*{field}"):
            use()
    convert(user_dir / "copy.zip", mmf_paths, allow_missing=True, force=True)
    assert coverage(dataset, "dev_seen") == Coverage("dev_seen", 1, 3)


@pytest.mark.parametrize("value", [None, [], {}, {"split": "dev", "rows": None}, {"split": 1, "rows": 2}])
def test_json_without_row_counts_is_ignored(value: object) -> None:
    assert Coverage.from_json(value) is None


def test_extra_keys_are_ignored_and_the_full_split_may_be_unknown() -> None:
    read = Coverage.from_json({"split": "mine", "rows": 1593, "full_rows": None, "auroc": 0.7})
    assert read == Coverage("mine", 1593)
    assert read is not None and (str(read), read.split_label) == ("1,593 rows of mine", "mine")
