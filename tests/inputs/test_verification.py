"""Verification before a run: features against rows, dataset against manifest. Uses real LMDBs."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mmf_win.cli import main
from mmf_win.dataset.annotations import AnnotationRow, read_annotations
from mmf_win.dataset.convert import convert
from mmf_win.dataset.coverage import Coverage
from mmf_win.errors import DataError, DatasetError, MmfEnvironmentError, UnsafeFeaturesError
from mmf_win.inputs.feature_lmdb import find_rows_without_features, read_image_keys
from mmf_win.inputs.verification import VerifiedInputs, verify_inputs
from mmf_win.integrity.verify import record_hashes
from mmf_win.paths import MmfPaths
from tests.worlds import hostile_archives, tiny_mmf

pytestmark = pytest.mark.torch  # for lmdb and numpy

SPLITS = {"train": 6, "dev": 3, "test": 2}
BROKEN_LIST = r"damaged: .*key list"


@dataclass
class Dataset:
    """Tiny dataset and its configuration.

    Attributes:
        mmf_paths: Folders of MMF.
        stems: Stems of all images, in the order of the splits.
    """

    mmf_paths: MmfPaths
    stems: list[str]

    @property
    def lmdb(self) -> Path:
        """Path of the region features."""
        return self.mmf_paths.dataset.features / "detectron.lmdb"

    def rows(self, split: str) -> list[AnnotationRow]:
        """Return the rows of a split."""
        return read_annotations(self.mmf_paths.dataset.annotation_file(split))

    def features_without(self, *rows: AnnotationRow) -> None:
        """Build features for all images except those of some rows."""
        excluded_stems = {Path(row.img).stem for row in rows}
        tiny_mmf.build_features(self.lmdb, [stem for stem in self.stems if stem not in excluded_stems])

    def put(self, key: bytes, value: bytes | None) -> None:
        """Replace a record of the features, or delete it if the value is None."""
        import lmdb

        with (
            lmdb.open(str(self.lmdb), map_size=1 << 28, create=False) as opened,
            opened.begin(write=True) as transaction,
        ):
            if value is None:
                transaction.delete(key)
            else:
                transaction.put(key, value)

    def check(
        self, *slots: str, regions: bool = True, npy: Path | None = None, model: Any = None, **options: Any
    ) -> VerifiedInputs:
        """Verify the inputs of a run with these slots and this model."""
        root = self.mmf_paths.dataset.root
        splits = {"train": "train", "val": "dev", "test": "test"}
        dataset = {
            "data_dir": str(self.mmf_paths.data_dir / "datasets"),
            "use_features": regions,
            "use_images": not regions,
            "annotations": {slot: [str(root / f"annotations/{s}.jsonl")] for slot, s in splits.items()},
            "images": {slot: [str(root / "images")] for slot in splits},
            "features": {slot: [str(npy or self.lmdb)] for slot in splits},
        }
        empty = self.mmf_paths.cache_dir / "empty.yaml"
        config = {
            "env": {"dataset_zoo": str(empty), "model_zoo": str(empty)},
            "checkpoint": {},
            "dataset": dataset,
            "model": model or {},
        }
        return verify_inputs(Path("unused"), self.mmf_paths, config, slots=slots or ("train", "val"), **options)


def read(inputs: VerifiedInputs) -> dict[str, Coverage | None]:
    """Return the coverage of each split that a run reads."""
    return {slot: Coverage.from_json(data) for slot, data in inputs.splits_read.items()}


@pytest.fixture
def dataset(mmf_paths: MmfPaths) -> Dataset:
    """Return a dataset with annotations and images, but without features."""
    stems = tiny_mmf.build_dataset(mmf_paths.dataset.root, SPLITS)
    mmf_paths.cache_dir.mkdir()
    (mmf_paths.cache_dir / "empty.yaml").write_text("{}", encoding="utf-8")
    return Dataset(mmf_paths, stems)


def test_images_without_features_are_counted_and_named_per_split(dataset: Dataset) -> None:
    train, dev = dataset.rows("train"), dataset.rows("dev")
    dataset.features_without(*train[:4], dev[1])
    with pytest.raises(DatasetError) as raised:
        dataset.check()
    names = ", ".join(row.img for row in train[:3])
    assert str(raised.value) == (f"region features are missing: train 4 of 6 ({names} …), dev 1 of 3 ({dev[1].img})")
    assert "--allow-missing" in str(raised.value.hint)


def test_missing_rows_are_excluded_from_filtered_annotation_files(
    dataset: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = dataset.rows("train")
    dataset.features_without(train[0], train[3])
    inputs = dataset.check(allow_missing=True)
    assert "these rows are excluded" in caplog.text
    assert read(inputs) == {"train": Coverage("train", 4, 6), "val": Coverage("dev", 3)}
    filtered_file = tmp_path / "annotations" / "train.jsonl"
    assert inputs.write_filtered_annotations(filtered_file.parent) == {
        "dataset_config": {"hateful_memes": {"annotations": {"train": [str(filtered_file)]}}}
    }
    original = dataset.mmf_paths.dataset.annotation_file("train").read_bytes().splitlines(keepends=True)
    assert filtered_file.read_bytes().splitlines(keepends=True) == [
        line for number, line in enumerate(original) if number not in (0, 3)
    ]


def test_rows_excluded_at_conversion_and_now_are_counted_together(
    dataset: Dataset, user_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = dataset.rows("dev")[0]
    root = dataset.mmf_paths.dataset.root
    (root / "images" / missing.img).unlink()
    copy = root.rename(user_dir / "copy")
    convert(copy, dataset.mmf_paths, allow_missing=True)
    dataset.features_without(dataset.rows("dev")[1], dataset.rows("train")[2])
    inputs = dataset.check("train", "val", "test", allow_missing=True)
    assert read(inputs) == {
        "train": Coverage("train", 5, 6),
        "val": Coverage("dev", 1, 3),
        "test": Coverage("test", 2, 2),
    }
    assert dataset.check("train", "val", "test", regions=False).splits_read["val"]["rows"] == 2


def test_only_splits_that_are_read_are_checked_and_prediction_needs_every_row(dataset: Dataset) -> None:
    dataset.features_without(dataset.rows("test")[1])
    dataset.check("train", "val")
    for allowed in (False, True):
        with pytest.raises(DatasetError, match="test 1 of 2") as raised:
            dataset.check("test", allow_missing=allowed)
    assert "a prediction needs every row" in str(raised.value.hint)


def test_dry_run_reads_features_once_and_does_not_record_them(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset.features_without()
    dataset.check(record=False)
    monkeypatch.setattr("mmf_win.inputs.archive_input.read_image_keys", None)
    dataset.check(record=False)
    assert not [*dataset.lmdb.parent.glob("SHA256SUMS*")]


def test_excluding_all_rows_is_an_error(dataset: Dataset) -> None:
    dataset.features_without(*dataset.rows("dev"))
    with pytest.raises(DatasetError, match="no rows remain"):
        dataset.check(allow_missing=True)


def test_hint_for_features_outside_the_zoo_does_not_suggest_fetching(dataset: Dataset) -> None:
    with pytest.raises(DatasetError, match="missing: ") as raised:
        dataset.check()
    hint = str(raised.value.hint)
    assert "mmfw features extract ARCHIVE" in hint and "mmfw features add FOLDER" in hint
    assert "fetch" not in hint and "--force" not in hint
    with pytest.raises(DataError, match="missing: ") as raised:
        dataset.check(regions=False, model={"bert_model_name": str(dataset.mmf_paths.data_dir / "no-bert")})
    assert "put an intact copy there" in str(raised.value.hint)


def test_missing_images_matter_if_images_are_read(dataset: Dataset, tmp_path: Path) -> None:
    first = dataset.rows("train")[0]
    (dataset.mmf_paths.dataset.images / first.img).unlink()
    with pytest.raises(DatasetError, match=f"images are missing: train 1 of 6 .{first.img}."):
        dataset.check(regions=False)
    dataset.features_without()
    inputs = dataset.check("train", "val", "test")  # only regions are read, not images
    assert inputs.write_filtered_annotations(tmp_path) == {}


def test_missing_images_do_not_matter_if_npy_files_are_read(dataset: Dataset, user_dir: Path) -> None:
    (user_dir / "1.npy").write_bytes(b"features")
    (dataset.mmf_paths.dataset.images / dataset.rows("train")[0].img).unlink()
    assert read(dataset.check(npy=user_dir))["train"] == Coverage("train", 6)


def test_keys_are_read_again_after_the_features_were_replaced(dataset: Dataset) -> None:
    dataset.features_without()
    dataset.check()
    shutil.rmtree(dataset.lmdb)
    dataset.features_without(dataset.rows("train")[0])
    for manifest_file in dataset.mmf_paths.dataset.features.glob("SHA256SUMS*"):
        manifest_file.unlink()
    with pytest.raises(DatasetError, match="train 1 of 6"):
        dataset.check()


@pytest.mark.parametrize("share", [0.0, 0.002, 0.5, 0.99])
def test_truncated_features_without_a_manifest_are_detected(dataset: Dataset, share: float) -> None:
    dataset.features_without()
    hostile_archives.truncate_file(dataset.lmdb / "data.mdb", share)
    with pytest.raises(DataError, match=r"detectron\.lmdb: damaged") as raised:
        dataset.check()
    assert str(raised.value).startswith(f"{dataset.lmdb}: damaged")
    assert "mmfw features add FOLDER" in str(raised.value.hint)
    assert not (dataset.mmf_paths.dataset.features / "SHA256SUMS").exists(), "verification must not write a manifest"


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (None, "key list is missing"),
        (pickle.dumps([b"nobody"]), "record nobody is missing"),
        (pickle.dumps([1, 2]), BROKEN_LIST),
        (pickle.dumps(None), BROKEN_LIST),
        (pickle.dumps(["a key"])[:-3], BROKEN_LIST),
        (b"\0", BROKEN_LIST),
        (b"", BROKEN_LIST),
    ],
    ids=["no list", "no record", "numbers", "none", "cut off", "no pickle", "empty"],
)
def test_features_with_an_invalid_key_list_are_detected(
    dataset: Dataset, pickled: bytes | None, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset.features_without()
    dataset.put(b"keys", pickled)
    with pytest.raises(DataError, match=message):
        dataset.check()
    assert "Traceback" not in capfd.readouterr().err


@dataclass
class Hostile:
    """Object that creates a folder when it is unpickled."""

    folder: Path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_unsafe_key_list_is_not_executed(dataset: Dataset, tmp_path: Path) -> None:
    dataset.features_without()
    dataset.put(b"keys", pickle.dumps([Hostile(tmp_path / "done")]))
    with pytest.raises(UnsafeFeaturesError, match="key list: refers to"):
        dataset.check()
    assert not (tmp_path / "done").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no C locale")
def test_features_in_a_path_that_the_locale_cannot_encode_are_intact(dataset: Dataset) -> None:
    dataset.features_without()
    arguments = ("verify", "vilbert", "--data-dir", str(dataset.mmf_paths.data_dir), "--json")
    result = subprocess.run(
        [sys.executable, "-m", "mmf_win", *arguments],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    (features,) = (item for item in json.loads(result.stdout) if item["what"] == "region features")
    assert features["state"] == "recorded", features


def test_unsafe_record_is_reported_and_not_executed(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is intact according to its manifest; test_broken_data.py trains on such a file."""
    dataset.features_without()
    key = min(read_image_keys(dataset.lmdb))
    dataset.put(key.encode(), pickle.dumps({"features": Hostile(tmp_path / "done")}))
    record_hashes(dataset.lmdb.parent, ["detectron.lmdb/data.mdb"], title="Recording")
    message = rf": rejected.* record {key}: refers to .*mkdir"
    arguments = ("vilbert", "--data-dir", str(dataset.mmf_paths.data_dir))
    assert main(["verify", *arguments, "--full"]) == 3
    assert re.search(message, capsys.readouterr().err)
    archive = shutil.make_archive(str(tmp_path / "features"), "zip", dataset.lmdb.parent)
    assert main(["features", "extract", archive, "--data-dir", str(tmp_path / "another")]) == 3
    errors = capsys.readouterr().err
    assert re.search(message, errors) and archive in errors
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize(
    "record",
    [None, [1, 2], {"a": 1}, {"features": "abc"}, {"features": [[1.0]]}, "a row", "text", "a dictionary"],
    ids=str,
)
def test_record_without_features_is_reported(dataset: Dataset, record: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    arrays = {"a row": np.ones(3), "text": np.ones((3, 4), "U1"), "a dictionary": np.array({"a": 1})}
    dataset.features_without()
    key = min(read_image_keys(dataset.lmdb))
    dataset.put(key.encode(), pickle.dumps({"features": arrays[record]} if isinstance(record, str) else record))
    assert main(["verify", "vilbert", "--data-dir", str(dataset.mmf_paths.data_dir), "--full"]) == 3
    assert f"{dataset.lmdb}: damaged: record {key}: has no features" in capsys.readouterr().err


MODELS = {
    "torchvision": {"modal_encoder": {"type": "resnet152", "params": {"pretrained": True}}},
    "transformers": {"bert_model_name": "owner/tiny"},
}


@pytest.mark.parametrize("library", MODELS)
def test_model_that_cannot_be_fetched_is_reported_with_a_hint_for_another_source(
    dataset: Dataset, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset.features_without()
    for name in ("TORCH_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(dataset.mmf_paths.cache_dir / name))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # an attempt to use the network fails with another error
    with pytest.raises(MmfEnvironmentError, match="downloads are disabled") as raised:
        dataset.check(model=MODELS[library], offline=True, hint_arguments=["mine"])
    assert "mmfw features fetch --source FOLDER mine" in str(raised.value.hint)
    assert raised.value.exit_code == 6
    if library == "transformers":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(MmfEnvironmentError, match="downloads are disabled"):
            dataset.check(model=MODELS[library])


def test_converted_dataset_is_verified_against_its_manifest(dataset: Dataset) -> None:
    root = dataset.mmf_paths.dataset.root
    files = [path.relative_to(root).as_posix() for path in root.rglob("*.*") if path.is_file()]
    record_hashes(root, files)
    dataset.check(regions=False)
    image = dataset.mmf_paths.dataset.images / dataset.rows("train")[0].img
    hostile_archives.truncate_file(image)
    with pytest.raises(DataError, match=f"changed since conversion:\nchanged: images/img/{image.name}") as raised:
        dataset.check(regions=False)
    assert "mmfw repair dataset" in str(raised.value.hint)
    dataset.features_without()
    dataset.check()  # images are not read with region features
    lines = (
        dataset.mmf_paths.dataset.annotation_file("train")
        .read_text(encoding="utf-8")
        .replace('"label": 0', '"label": 1')
    )
    dataset.mmf_paths.dataset.annotation_file("train").write_text(lines, encoding="utf-8")
    with pytest.raises(DataError, match=r"changed: annotations/train\.jsonl"):
        dataset.check()


def test_dataset_without_its_manifest_can_still_be_read(dataset: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    root = dataset.mmf_paths.dataset.root
    record_hashes(root, ["annotations/train.jsonl"])
    with (root / "SHA256SUMS").open("a", encoding="utf-8") as file:
        file.write("# a comment\n")
    dataset.check(regions=False)
    (root / "SHA256SUMS").unlink()
    dataset.check(regions=False)
    assert "SHA256SUMS is missing, so the dataset is not verified" in caplog.text


def test_features_are_found_by_the_names_that_mmf_tries() -> None:
    rows = [AnnotationRow(i, f"img/{name}.png", "", None, i) for i, name in enumerate(("01235", "7", "meme_042", "x"))]
    assert find_rows_without_features(rows, {"1235", "7", "42", "x"}) == []
    assert find_rows_without_features(rows, {"01235", "meme_042"}) == [rows[1], rows[3]]
