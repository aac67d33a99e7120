"""``mmfw check-submission``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mmf_win.dataset.annotations import read_annotations
from mmf_win.dataset.convert import convert
from mmf_win.paths import MmfPaths
from tests.worlds import hostile_archives, memes
from tests.worlds.tools import MmfwRunner, split_command


@pytest.fixture
def data_dir(user_dir: Path) -> Path:
    """Make a data folder with one split that has the ids 3, 1 and 2."""
    annotations = MmfPaths.resolve(user_dir).dataset.annotations
    annotations.mkdir(parents=True)
    rows: list[dict[str, object]] = [{"id": f"{i:05}", "img": f"img/{i:05}.png", "text": ""} for i in (3, 1, 2)]
    (annotations / "test_seen.jsonl").write_bytes(memes.jsonl(rows))
    return user_dir


def check(mmfw: MmfwRunner, data_dir: Path, content: str, split: str = "test_unseen", code: int = 0) -> Any:
    """Run the command with and without ``--json``; return the JSON."""
    file = data_dir / "predictions.csv"
    file.write_text(content, encoding="utf-8", newline="")
    arguments = ("check-submission", str(file), "--split", split, "--data-dir", str(data_dir))
    result = mmfw.json(*arguments, code=code)
    mmfw(*arguments, code=code)
    return result


def test_all_problems_are_listed_with_exit_code_3(data_dir: Path, mmfw: MmfwRunner) -> None:
    check(mmfw, data_dir, "id,proba,label\n1,nan,0\n2,0.9,1\n", split="test_seen", code=3)
    assert "error: lines whose proba is not a number from 0 to 1 (1): 2" in mmfw.err
    assert "error: missing ids (1): 3" in mmfw.err
    assert "predictions.csv: invalid submission for test_seen" in mmfw.err


def test_valid_file_passes_and_a_warning_is_not_an_error(data_dir: Path, mmfw: MmfwRunner) -> None:
    check(mmfw, data_dir, "id,proba,label\n00003,0.1,0\n1,0.2,0\n2,0.9,1\n", split="test_seen")
    assert mmfw.err.endswith("valid submission for test_seen\n")
    result = check(mmfw, data_dir, "id,proba,label\n1,0.2,0\n3,0.1,0\n2,0.9,1\n", split="test_seen")
    assert "warning: rows are not in the order" in mmfw.err
    assert result["usable"] is True and result["problems"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes among files")
def test_pipe_is_rejected_without_waiting(data_dir: Path, mmfw: MmfwRunner) -> None:
    os.mkfifo(data_dir / "pipe")
    arguments = ("--split", "test_seen", "--data-dir", data_dir)
    assert "pipe: not a file" in mmfw("check-submission", data_dir / "pipe", *arguments, code=3)


def format_submission(ids: Iterable[int]) -> str:
    return "id,proba,label\n" + "".join(f"{id_:05},0.25,0\n" for id_ in ids)


def test_submission_from_an_incomplete_copy_with_real_proportions_is_checked(user_dir: Path, mmfw: MmfwRunner) -> None:
    files, missing_ids = memes.incomplete_dataset_files()
    convert(memes.write_tree(files, user_dir / "copy"), MmfPaths.resolve(user_dir), allow_missing=True)
    rows = read_annotations(MmfPaths.resolve(user_dir).dataset.annotation_file("test_unseen"))
    kept_ids = [row.id for row in rows]
    result = check(mmfw, user_dir, format_submission(kept_ids), code=3)
    assert result["usable"] is False
    [problem] = result["problems"]
    assert problem.startswith("missing ids (407): ")
    result = check(mmfw, user_dir, format_submission(sorted([*kept_ids, *missing_ids["test_unseen"]])))
    assert (result["usable"], result["problems"]) == (True, [])
    ids = [row.id for row in read_annotations(MmfPaths.resolve(user_dir).dataset.annotation_file("test_seen"))]
    assert check(mmfw, user_dir, format_submission(ids), split="test_seen")["usable"], "test_seen has no excluded rows"


def test_following_the_hint_for_excluded_memes_makes_a_valid_submission(user_dir: Path, mmfw: MmfwRunner) -> None:
    """Two of the three images of test_unseen, 15 and 16, are missing."""
    copy, members = user_dir / "data dir", memes.without_images(memes.dataset_files(), [15, 16])
    archive = hostile_archives.write_zip(user_dir / "copy.zip", members)
    convert(archive, MmfPaths.resolve(copy), allow_missing=True)
    result = check(mmfw, copy, format_submission([14, 15, 16, 1]), code=3)  # the ID 1 is in train
    assert result["problems"] == ["ids that are not in this split (1): 1"]
    check(mmfw, copy, format_submission([14]), code=3)
    assert "2 memes of test_unseen" in mmfw.err
    arguments = split_command(re.findall("`mmfw (convert .*?)`", mmfw.err)[0])
    complete = hostile_archives.write_zip(user_dir / "complete.zip", memes.dataset_files())
    mmfw(*({"ARCHIVE": complete}.get(word, word) for word in arguments))
    check(mmfw, copy, format_submission([14]), code=3)
    assert "mmfw predict --split test_unseen" in mmfw.err
    assert check(mmfw, copy, format_submission([14, 15, 16]))["usable"]
