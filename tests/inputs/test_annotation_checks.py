"""Checks for unbalanced labels and shared memes, on converted datasets."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mmf_win.dataset.annotations import read_annotations
from mmf_win.dataset.convert import convert
from mmf_win.inputs.annotation_checks import check_annotations
from mmf_win.inputs.verification import VerifiedInputs
from mmf_win.integrity.manifest import MANIFEST_NAME
from mmf_win.paths import MmfPaths
from mmf_win.protocol.check_result import CheckResult
from tests.worlds.memes import image, jsonl, write_tree


def rows(*ids: int, **changes: Any) -> list[dict[str, object]]:
    """Return memes, every other one hateful, with unique images and texts apart from ``changes``."""
    return [{"id": id_, "img": f"img/{id_}.png", "label": id_ % 2, "text": f"text {id_}"} | changes for id_ in ids]


def find_results(mmf_paths: MmfPaths, source: Path, **splits: list[dict[str, object]]) -> dict[str, list[CheckResult]]:
    """Return the results of each check for a dataset with these splits, in which image 20 is a copy of image 1."""
    files = {f"{split}.jsonl": jsonl(result) for split, result in splits.items()}
    images = {f"img/{id_}.png": image(1 if id_ == 20 else id_) for id_ in range(1, 41)}
    convert(write_tree(files | images, source), mmf_paths, allow_missing=True)
    slots = {"train": "annotations/train.jsonl", "val": f"annotations/{[*splits][1]}.jsonl"}
    config = {"data_dir": str(mmf_paths.dataset.root), "annotations": slots, "images": {"train": "images"}}
    results: dict[str, list[CheckResult]] = {}
    for result in check_annotations(mmf_paths.dataset, config):
        results.setdefault(result.check, []).append(result)
    return results


@pytest.mark.parametrize(
    ("labels", "verdict", "share"),
    [
        ([0] * 8 + [1, 1], "ok", 20),
        ([0] * 10 + [1], "warning", 9),
        ([1] * 11 + [0], "warning", 92),
        ([0] * 4, "error", 0),
    ],
)
def test_unbalanced_labels_are_a_warning_and_a_single_label_is_an_error(
    mmf_paths: MmfPaths, tmp_path: Path, labels: list[int], verdict: str, share: int
) -> None:
    train = [row | {"label": label} for row, label in zip(rows(*range(1, 13)), labels, strict=False)]
    train_result, val_result = find_results(mmf_paths, tmp_path / "memes", train=train, dev=rows(30, 31))["balance"]
    assert train_result.verdict == verdict
    assert train_result.message == f"train: {share} % of {len(labels)} memes are hateful"
    assert bool(train_result.hint) == (verdict != "ok")
    assert val_result == CheckResult("ok", "balance", "dev: 50 % of 2 memes are hateful")


def test_validation_with_a_single_label_is_an_error(mmf_paths: MmfPaths, tmp_path: Path) -> None:
    results = find_results(mmf_paths, tmp_path / "memes", train=rows(1, 2, 3, 4), dev=rows(30, 32, 34))
    (result,) = results["validation"]
    assert result.verdict == "error" and "no AUROC and no best.ckpt" in result.message
    assert "annotations.val[0]=FILE" in str(result.hint)
    both = {"train": "annotations/train.jsonl", "val": ["annotations/dev.jsonl", "annotations/train.jsonl"]}
    config = {"data_dir": str(mmf_paths.dataset.root), "annotations": both}
    checks = {result.check for result in check_annotations(mmf_paths.dataset, config)}
    assert "validation" not in checks, "the files together have both labels"
    path = mmf_paths.dataset.annotation_file("train")
    config["annotations"] = {"train": str(path), "val": str(path)}
    hateful_rows = [row for row in read_annotations(path) if row.label == 1]
    checks = {
        result.check
        for result in check_annotations(mmf_paths.dataset, config, VerifiedInputs({"val": (path, hateful_rows)}))
    }
    assert "validation" in checks, "only rows kept by --allow-missing may be checked"


def test_shared_texts_images_and_published_shared_memes_are_accepted(mmf_paths: MmfPaths, tmp_path: Path) -> None:
    results = find_results(
        mmf_paths,
        tmp_path / "memes",
        train=rows(1, 2, 3, 4),
        dev_unseen=[*rows(5, 6), *rows(7, text="text 1"), *rows(8, img="img/2.png")],
        dev_seen=rows(5, 6),
        test_seen=rows(9, 10),
    )
    (result,) = results["splits"]
    assert result.verdict == "ok", "dev_seen and dev_unseen share memes on purpose"
    both = {"train": ["annotations/train.jsonl", "annotations/dev_seen.jsonl"], "val": "annotations/dev_unseen.jsonl"}
    config = {"data_dir": str(mmf_paths.dataset.root), "annotations": both}
    leaks = [result.message for result in check_annotations(mmf_paths.dataset, config) if result.check == "splits"]
    assert leaks == ["memes in both dev_seen and dev_unseen: 2 (5, 6)"], (
        "an overlap must be reported if one of the splits is trained on"
    )


def test_only_relevant_splits_are_compared(mmf_paths: MmfPaths, tmp_path: Path) -> None:
    find_results(mmf_paths, tmp_path / "memes", train=rows(1, 2, 3, 4), dev=rows(5, 6))
    train, user_file = mmf_paths.dataset.annotation_file("train"), tmp_path / "own" / "train.jsonl"
    user_file.parent.mkdir()
    for copy in (
        user_file,
        mmf_paths.dataset.annotation_file("fold_train"),
        mmf_paths.dataset.annotation_file("fold_val"),
    ):
        shutil.copyfile(train, copy)

    def list_texts(train: str, val: object) -> list[str]:
        config = {"data_dir": str(mmf_paths.dataset.root), "annotations": {"train": train, "val": str(val)}}
        return [result.message for result in check_annotations(mmf_paths.dataset, config)]

    *balance, no_leak = list_texts("annotations/train.jsonl", "annotations/dev.jsonl")
    assert len(balance) == 2
    assert no_leak == "no shared memes: train, dev", "other splits must not be compared"
    for val in (user_file, train):
        *balance, leak = list_texts("annotations/../annotations/train.jsonl", val)
        assert len(balance) == 2
        assert leak == f"memes in both train and {val}: 4 (1, 2, 3 …)"
    under_a_published_name = user_file.with_name("dev.jsonl")
    shutil.copyfile(mmf_paths.dataset.annotation_file("dev"), under_a_published_name)
    assert list_texts(str(under_a_published_name), "annotations/fold_val.jsonl")[2:] == [
        f"memes in both {under_a_published_name} and dev: 2 (5, 6)"
    ]


def test_shared_memes_are_found_by_image_hash_or_else_by_image_name(mmf_paths: MmfPaths, tmp_path: Path) -> None:
    copied = rows(20, text="text 1")  # same image and text under another name
    splits = {"train": rows(1, 2, 3), "dev_seen": rows(5, 6), "test_seen": [*rows(9), *copied]}
    (warning,) = find_results(mmf_paths, tmp_path / "memes", **splits)["splits"]
    assert warning == CheckResult(
        "warning", "splits", "memes in both train and test_seen: 1 (1 = 20)", warning.hint, ["1 = 20"]
    )
    config = {
        "data_dir": str(mmf_paths.dataset.root),
        "annotations": {"train": "annotations/train.jsonl", "val": "annotations/dev_seen.jsonl"},
    }
    shutil.rmtree(mmf_paths.dataset.images)  # no image is read
    mmf_paths.dataset.annotation_file("test_unseen").write_text(
        "{", encoding="utf-8"
    )  # splits that are not trained on are not read
    assert warning in check_annotations(mmf_paths.dataset, config)
    (mmf_paths.dataset.root / MANIFEST_NAME).unlink()
    assert warning not in check_annotations(mmf_paths.dataset, config)
    train = mmf_paths.dataset.annotation_file("train")
    train.write_text(train.read_text(encoding="utf-8").replace("img/1.png", "img/20.png"), encoding="utf-8")
    assert warning in check_annotations(mmf_paths.dataset, config)
