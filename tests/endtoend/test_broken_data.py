"""Damaged images, and annotations as other programs write them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mmf_win.cli import main
from mmf_win.dataset.annotations import read_annotations
from mmf_win.integrity.verify import record_hashes
from tests.endtoend.conftest import Tool, predicted_ids, probabilities
from tests.worlds import pickles
from tests.worlds.tools import mark_wide


@pytest.fixture
def own(tool: Tool) -> Tool:
    """A copy of the dataset, put there by hand, which a test may break."""
    return tool.with_world_copy("сломано broken")


def annotations(tool: Tool, split: str) -> Path:
    return tool.world.dataset / "annotations" / f"{split}.jsonl"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def break_picture(tool: Tool, split: str, row: int, said: str = "truncated") -> tuple[str, str]:
    """Damage a picture between its start and its end; its path, and the meme's id."""
    meme = rows(annotations(tool, split))[row]
    path = tool.world.dataset / "images" / meme["img"]
    content = path.read_bytes()
    kept = content[:2000] if said == "truncated" else content[:29] + bytes(4) + content[33:2000]  # of IHDR
    path.write_bytes(kept + content[-12:])
    return str(path), meme["id"]


@pytest.mark.parametrize(
    ("workers", "said"), mark_wide([(0, "truncated"), (2, "cannot identify")], except_for=[(0, "truncated")])
)
def test_a_broken_picture_is_named_with_its_meme_and_row(tool: Tool, own: Tool, workers: int, said: str) -> None:
    trained = tool.get_trained_run("image")
    path, meme = break_picture(own, "train", 3, said)
    words = ("--updates", "4", f"training.num_workers={workers}")
    assert own.run_for_exit_code("train", own.preset("image"), *words) == 3
    where = f"meme {meme} in row 4 of {annotations(own, 'train')}"
    assert path in own.errors and where in own.errors
    assert said in own.errors and "convert that folder again" in own.errors
    assert "Traceback" not in own.errors

    path, meme = break_picture(own, "test_unseen", 1, said)
    assert own.run_for_exit_code("predict", trained.id, f"training.num_workers={workers}") == 3
    where = f"meme {meme} in row 2 of {annotations(own, 'test_unseen')}"
    assert path in own.errors and where in own.errors
    assert "Traceback" not in own.errors


def test_a_check_names_a_picture_that_is_broken_inside_without_a_traceback(own: Tool) -> None:
    for row in range(len(rows(annotations(own, "train")))):
        break_picture(own, "train", row)
    assert own.run_for_exit_code("check", own.preset("image")) == 3
    assert ".png: image cannot be read (" in own.errors and "meme " in own.errors
    assert "convert that folder again" in own.errors
    assert "Traceback" not in own.errors and 'File "' not in own.errors


def test_what_is_no_picture_is_named_before_a_run_or_left_out_of_it(tool: Tool, own: Tool) -> None:
    trained = tool.get_trained_run("image")
    for split, row in (("train", 3), ("test_unseen", 1)):
        path = own.world.dataset / "images" / rows(annotations(own, split))[row]["img"]
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    for command in ("check", "train"):
        assert own.run_for_exit_code(command, own.preset("image")) == 3
        assert "images are missing or cannot be used: train 1 of " in own.errors
        assert "git lfs pull" in own.errors and "--allow-missing" in own.errors
        assert "Traceback" not in own.errors
    assert own.run_for_exit_code("predict", trained.id) == 3
    assert "image cannot be read (" in own.errors and "row 2 of " in own.errors
    assert own.run_for_exit_code("train", own.preset("image"), "--updates", "2", "--allow-missing") == 0, own.errors


class MakesFolder:
    """Pickled, it is a call that makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize(
    ("hostile", "workers"), mark_wide(product([True, False], [0, 2]), except_for=[(True, 0), (False, 2)])
)
def test_a_record_of_features_that_would_run_code_or_is_damaged_ends_the_run_with_its_name(
    tool: Tool, own: Tool, tmp_path: Path, workers: int, hostile: bool
) -> None:
    import lmdb

    trained = tool.get_trained_run("regions")
    features = own.world.dataset / "features" / "detectron.lmdb"
    runs_code = pickle.dumps({"features": MakesFolder(tmp_path / "made")})
    record, said = runs_code, "rejected because it could run code: record {}: "
    if hostile and workers:
        record = pickles.HOSTILE_PICKLES["too few objects"]
    elif not hostile:
        record, said = b"\x80\x04cut", "damaged: record {}: cannot be read"
        if workers:
            record, said = pickle.dumps([1, 2]), "damaged: record {}: has no features"
    train = ("train", own.preset("regions"), "--updates", "4")
    for split, command in (("train", train), ("test_unseen", ("predict", trained.id))):
        name = Path(rows(annotations(own, split))[0]["img"]).stem
        with (
            lmdb.open(str(features), map_size=1 << 28, create=False, lock=False) as opened,
            opened.begin(write=True) as transaction,
        ):
            assert transaction.replace(name.encode(), record)
        record_hashes(features.parent, ["detectron.lmdb/data.mdb"], title="Recording")
        assert own.run_for_exit_code(*command, f"training.num_workers={workers}") == 3
        assert str(features) in own.errors and said.format(name) in own.errors
        assert ("a source that you trust" if hostile else "mmfw verify features --full") in own.errors
        assert "Traceback" not in own.errors
    assert not (tmp_path / "made").exists()


@pytest.mark.wide
def test_a_picture_that_is_broken_in_the_archive_is_replaced_as_the_hint_says(own: Tool) -> None:
    broken, _ = break_picture(own, "train", 0)
    unpacked = own.folder / "unpacked"
    unpacked.mkdir()
    for part in ("annotations", "images"):
        (own.world.dataset / part).rename(unpacked / part)
    path = unpacked / Path(broken).relative_to(own.world.dataset)
    preset = own.preset("image")

    def convert(*words: str) -> int:
        return main(["convert", "--zip", str(unpacked), "--data-dir", str(own.world.data), *words])

    assert convert() == 0
    assert own.run_for_exit_code("train", preset, "--updates", "4") == 3
    assert "convert that folder again" in own.errors

    shutil.copy(next(unpacked.glob("images/img/*.png")), path)
    assert convert("--force") == 0
    assert own.run_for_exit_code("train", preset, "--updates", "1") == 0, own.errors


@pytest.mark.wide
def test_a_picture_is_not_taken_for_one_of_another_suffix(tool: Tool, own: Tool) -> None:
    """Beside each cat.png lies a cat.jpg, which MMF would load instead."""
    tool.get_trained_run("image")
    first = probabilities(own("predict", "--no-report"))
    for picture in (own.world.dataset / "images" / "img").glob("*.png"):
        picture.with_suffix(".jpg").write_bytes(b"not a picture")
    assert probabilities(own("predict", "--no-report")) == first


def test_annotations_are_read_as_other_programs_write_them(own: Tool) -> None:
    """A JSON list, a byte order mark with Windows line ends and a blank line, and null for no label."""
    train, val, test = (annotations(own, split) for split in ("train", "dev_unseen", "test_unseen"))
    read = {path: read_annotations(path) for path in (train, val, test)}
    train.write_text(json.dumps(rows(train), indent=2), encoding="utf-8")
    lines = "\r\n".join(val.read_text(encoding="utf-8").splitlines())
    val.write_text(f"{lines}\r\n\r\n", encoding="utf-8-sig", newline="")
    partly = [row | ({"label": None} if n % 2 else {}) for n, row in enumerate(rows(test))]
    test.write_text("".join(json.dumps(row) + "\n" for row in partly), encoding="utf-8")
    assert [row.img for row in read_annotations(train)] == [row.img for row in read[train]]

    assert own("train", own.preset("vilbert"), "--epochs", "1", "training.batch_size=7")["updates"] == 2
    predicted = own("predict")
    assert predicted_ids(predicted) == [str(row.id) for row in read[test]]
    assert predicted["auroc"] is None


def test_a_row_without_label_is_refused_before_training(own: Tool) -> None:
    train = annotations(own, "train")
    partly = [row | ({"label": None} if n == 2 else {}) for n, row in enumerate(rows(train))]
    train.write_text("".join(json.dumps(row) + "\n" for row in partly), encoding="utf-8")
    assert own.run_for_exit_code("train", own.preset("vilbert"), "--updates", "1") == 3
    assert f"{train}:3" in own.errors
    assert not own.save_dir.exists()
