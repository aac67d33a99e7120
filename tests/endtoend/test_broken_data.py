"""Damaged images and region features, and annotations in the formats of other programs."""

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
def tool_copy(tool: Tool) -> Tool:
    """Return the tool with a copy of the dataset without recorded hashes, which a test may damage."""
    return tool.with_world_copy("сломано broken")


def annotation_file(tool: Tool, split: str) -> Path:
    return tool.world.dataset / "annotations" / f"{split}.jsonl"


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def damage_image(tool: Tool, split: str, row: int, problem: str = "truncated") -> tuple[str, str]:
    """Damage an image between its start and its end, and return its path and the meme's id."""
    meme = read_rows(annotation_file(tool, split))[row]
    path = tool.world.dataset / "images" / meme["img"]
    content = path.read_bytes()
    start = content[:2000] if problem == "truncated" else content[:29] + bytes(4) + content[33:2000]  # in IHDR
    path.write_bytes(start + content[-12:])
    return str(path), meme["id"]


@pytest.mark.parametrize(
    ("workers", "problem"), mark_wide([(0, "truncated"), (2, "cannot identify")], except_for=[(0, "truncated")])
)
def test_damaged_image_is_reported_with_its_meme_and_row(
    tool: Tool, tool_copy: Tool, workers: int, problem: str
) -> None:
    trained_run = tool.get_trained_run("image")
    path, meme = damage_image(tool_copy, "train", 3, problem)
    options = ("--updates", "4", f"training.num_workers={workers}")
    assert tool_copy.run_for_exit_code("train", tool_copy.write_preset("image"), *options) == 3
    location = f"meme {meme} in row 4 of {annotation_file(tool_copy, 'train')}"
    assert path in tool_copy.errors and location in tool_copy.errors
    assert problem in tool_copy.errors and "convert that folder again" in tool_copy.errors
    assert "Traceback" not in tool_copy.errors

    path, meme = damage_image(tool_copy, "test_unseen", 1, problem)
    assert tool_copy.run_for_exit_code("predict", trained_run.id, f"training.num_workers={workers}") == 3
    location = f"meme {meme} in row 2 of {annotation_file(tool_copy, 'test_unseen')}"
    assert path in tool_copy.errors and location in tool_copy.errors
    assert "Traceback" not in tool_copy.errors


def test_check_reports_a_damaged_image_without_a_traceback(tool_copy: Tool) -> None:
    for row in range(len(read_rows(annotation_file(tool_copy, "train")))):
        damage_image(tool_copy, "train", row)
    assert tool_copy.run_for_exit_code("check", tool_copy.write_preset("image")) == 3
    assert ".png: image cannot be read (" in tool_copy.errors and "meme " in tool_copy.errors
    assert "convert that folder again" in tool_copy.errors
    assert "Traceback" not in tool_copy.errors and 'File "' not in tool_copy.errors


def test_file_that_is_not_an_image_is_reported_before_a_run_or_excluded(tool: Tool, tool_copy: Tool) -> None:
    trained_run = tool.get_trained_run("image")
    for split, row in (("train", 3), ("test_unseen", 1)):
        path = tool_copy.world.dataset / "images" / read_rows(annotation_file(tool_copy, split))[row]["img"]
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    for command in ("check", "train"):
        assert tool_copy.run_for_exit_code(command, tool_copy.write_preset("image")) == 3
        assert "images are missing or cannot be used: train 1 of " in tool_copy.errors
        assert "git lfs pull" in tool_copy.errors and "--allow-missing" in tool_copy.errors
        assert "Traceback" not in tool_copy.errors
    assert tool_copy.run_for_exit_code("predict", trained_run.id) == 3
    assert "image cannot be read (" in tool_copy.errors and "row 2 of " in tool_copy.errors
    train_command = ("train", tool_copy.write_preset("image"), "--updates", "2", "--allow-missing")
    assert tool_copy.run_for_exit_code(*train_command) == 0, tool_copy.errors


class FolderMaker:
    """Object that makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize(
    ("hostile", "workers"), mark_wide(product([True, False], [0, 2]), except_for=[(True, 0), (False, 2)])
)
def test_hostile_or_damaged_feature_record_is_reported_and_stops_the_run(
    tool: Tool, tool_copy: Tool, tmp_path: Path, workers: int, hostile: bool
) -> None:
    import lmdb

    trained_run = tool.get_trained_run("regions")
    features = tool_copy.world.dataset / "features" / "detectron.lmdb"
    runs_code = pickle.dumps({"features": FolderMaker(tmp_path / "made")})
    record, message = runs_code, "rejected because it could run code: record {}: "
    if hostile and workers:
        record = pickles.HOSTILE_PICKLES["too few objects"]
    elif not hostile:
        record, message = b"\x80\x04cut", "damaged: record {}: cannot be read"
        if workers:
            record, message = pickle.dumps([1, 2]), "damaged: record {}: has no features"
    train_command = ("train", tool_copy.write_preset("regions"), "--updates", "4")
    for split, command in (("train", train_command), ("test_unseen", ("predict", trained_run.id))):
        name = Path(read_rows(annotation_file(tool_copy, split))[0]["img"]).stem
        with (
            lmdb.open(str(features), map_size=1 << 28, create=False, lock=False) as environment,
            environment.begin(write=True) as transaction,
        ):
            assert transaction.replace(name.encode(), record)
        record_hashes(features.parent, ["detectron.lmdb/data.mdb"], title="Recording")
        assert tool_copy.run_for_exit_code(*command, f"training.num_workers={workers}") == 3
        assert str(features) in tool_copy.errors and message.format(name) in tool_copy.errors
        assert ("a source that you trust" if hostile else "mmfw verify features --full") in tool_copy.errors
        assert "Traceback" not in tool_copy.errors
    assert not (tmp_path / "made").exists()


@pytest.mark.wide
def test_image_damaged_in_the_archive_is_replaced_by_following_the_hint(tool_copy: Tool) -> None:
    damaged_image, _ = damage_image(tool_copy, "train", 0)
    unpacked = tool_copy.folder / "unpacked"
    unpacked.mkdir()
    for part in ("annotations", "images"):
        (tool_copy.world.dataset / part).rename(unpacked / part)
    path = unpacked / Path(damaged_image).relative_to(tool_copy.world.dataset)
    preset = tool_copy.write_preset("image")

    def convert(*options: str) -> int:
        return main(["convert", "--zip", str(unpacked), "--data-dir", str(tool_copy.world.data), *options])

    assert convert() == 0
    assert tool_copy.run_for_exit_code("train", preset, "--updates", "4") == 3
    assert "convert that folder again" in tool_copy.errors

    shutil.copy(next(unpacked.glob("images/img/*.png")), path)
    assert convert("--force") == 0
    assert tool_copy.run_for_exit_code("train", preset, "--updates", "1") == 0, tool_copy.errors


@pytest.mark.wide
def test_image_is_not_replaced_by_a_file_with_another_suffix(tool: Tool, tool_copy: Tool) -> None:
    """Next to each cat.png is a cat.jpg, which MMF would load instead."""
    tool.get_trained_run("image")
    expected = probabilities(tool_copy("predict", "--no-report"))
    for image in (tool_copy.world.dataset / "images" / "img").glob("*.png"):
        image.with_suffix(".jpg").write_bytes(b"not a picture")
    assert probabilities(tool_copy("predict", "--no-report")) == expected


def test_annotations_in_the_formats_of_other_programs_are_read(tool_copy: Tool) -> None:
    """Train with a JSON list, a byte order mark with Windows line ends and a blank line, and null labels."""
    train, val, test = (annotation_file(tool_copy, split) for split in ("train", "dev_unseen", "test_unseen"))
    expected_rows = {path: read_annotations(path) for path in (train, val, test)}
    train.write_text(json.dumps(read_rows(train), indent=2), encoding="utf-8")
    lines = "\r\n".join(val.read_text(encoding="utf-8").splitlines())
    val.write_text(f"{lines}\r\n\r\n", encoding="utf-8-sig", newline="")
    partly_labelled = [row | ({"label": None} if n % 2 else {}) for n, row in enumerate(read_rows(test))]
    test.write_text("".join(json.dumps(row) + "\n" for row in partly_labelled), encoding="utf-8")
    assert [row.img for row in read_annotations(train)] == [row.img for row in expected_rows[train]]

    preset = tool_copy.write_preset("vilbert")
    assert tool_copy("train", preset, "--epochs", "1", "training.batch_size=7")["updates"] == 2
    predicted = tool_copy("predict")
    assert predicted_ids(predicted) == [str(row.id) for row in expected_rows[test]]
    assert predicted["auroc"] is None


def test_training_row_without_label_is_refused(tool_copy: Tool) -> None:
    train = annotation_file(tool_copy, "train")
    partly_labelled = [row | ({"label": None} if n == 2 else {}) for n, row in enumerate(read_rows(train))]
    train.write_text("".join(json.dumps(row) + "\n" for row in partly_labelled), encoding="utf-8")
    assert tool_copy.run_for_exit_code("train", tool_copy.write_preset("vilbert"), "--updates", "1") == 3
    assert f"{train}:3" in tool_copy.errors
    assert not tool_copy.save_dir.exists()
