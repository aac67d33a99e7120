"""``mmfw check-submission``, and what ``mmfw predict`` says before anything is predicted."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mmf_win.cli import main
from mmf_win.commands.predict import KINDS
from mmf_win.dataset.annotations import read_rows
from mmf_win.dataset.convert import convert
from mmf_win.files import read_json, write_json
from mmf_win.paths import Places
from mmf_win.results import ensemble
from tests.worlds import hostile, memes


@pytest.fixture
def data_dir(user_dir: Path) -> Path:
    """A data folder with one split, of the ids 3, 1 and 2."""
    annotations = Places.resolve(user_dir).dataset.annotations
    annotations.mkdir(parents=True)
    rows: list[dict[str, object]] = [
        {"id": f"{i:05}", "img": f"img/{i:05}.png", "text": ""} for i in (3, 1, 2)
    ]
    (annotations / "test_seen.jsonl").write_bytes(memes.jsonl(rows))
    return user_dir


def check(data_dir: Path, content: str, *words: str, split: str = "test_seen") -> int:
    file = data_dir / "predictions.csv"
    file.write_text(content, encoding="utf-8", newline="")
    return main(["check-submission", str(file), "--split", split, "--data-dir", str(data_dir), *words])


@pytest.mark.parametrize("digits", [1, 5], ids=["as MMF writes them", "as the release has them"])
def test_a_right_file_is_right(digits: int, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(3, 0.1, 0), (1, 0.2, 0), (2, 0.9, 1)]
    lines = "".join(f"{id_:0{digits}},{proba},{label}\n" for id_, proba, label in rows)
    assert check(data_dir, f"id,proba,label\n{lines}") == 0
    assert "3 rows, right for test_seen" in capsys.readouterr().err


def test_all_problems_are_told_and_the_exit_code_is_that_of_data(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(data_dir, "id,proba,label\r\n1,nan,0\r\n2,0.9,1\r\n") == 3
    said = capsys.readouterr().err
    assert "error: 1 row whose proba is NaN (line 2)" in said
    assert "error: 1 id is missing (id 3)" in said
    assert "warning: its lines end with" in said
    assert "predictions.csv: 2 things must be put right before it can be scored on test_seen" in said


def test_a_warning_alone_is_no_error(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(data_dir, "id,proba,label\n1,0.2,0\n3,0.1,0\n2,0.9,1\n", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["usable"] is True
    [problem] = found["problems"]
    assert problem["fatal"] is False and "order" in problem["text"]


def test_a_split_that_is_not_there_is_told_with_those_that_are(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(data_dir, "", split="dev") == 3
    assert "there are: test_seen" in capsys.readouterr().err


@pytest.fixture
def copy(user_dir: Path) -> tuple[Path, list[int], list[int]]:
    """A data folder made from a copy that lacks images; the ids of test_unseen that it has, and has not."""
    files, gone = memes.public_copy()
    data_dir = user_dir / "data dir"
    archive = hostile.plain_zip(user_dir / "copy.zip", files)
    convert(archive, Places.resolve(data_dir), allow_missing=True)
    rows = read_rows(Places.resolve(data_dir).dataset.split("test_unseen"))
    return data_dir, [row.id for row in rows], gone["test_unseen"]


def typed(command: str) -> list[str]:
    """The words of a command as a shell of this system takes them apart."""
    if os.name == "nt":
        return [word.strip('"') for word in shlex.split(command, posix=False)]
    return shlex.split(command)


def csv_of(ids: Iterable[int]) -> str:
    return "id,proba,label\n" + "".join(f"{id_},0.25,0\n" for id_ in ids)


def checked(
    capsys: pytest.CaptureFixture[str], data_dir: Path, content: str, code: int, split: str = "test_unseen"
) -> dict[str, Any]:
    assert check(data_dir, content, "--json", split=split) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_memes_that_were_left_out_at_conversion_are_needed_too(
    copy: tuple[Path, list[int], list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir, there, gone = copy
    assert (len(there), len(gone)) == (1593, 407)
    found = checked(capsys, data_dir, csv_of(there), 3)
    assert (found["usable"], found["rows"], found["needed"]) == (False, 1593, 2000)
    assert (found["missing"], found["missing_left_out"]) == (407, 407)
    [problem] = found["problems"]
    assert problem["fatal"] and "407 ids are missing" in problem["text"] and str(gone[0]) in problem["text"]
    full = sorted([*there, *gone])
    found = checked(capsys, data_dir, csv_of(full), 0)
    assert (found["usable"], found["rows"], found["missing"], found["problems"]) == (True, 2000, 0, [])
    found = checked(capsys, data_dir, csv_of([*full, 1]), 3)  # 1 is of train
    assert [problem["text"] for problem in found["problems"]] == ["1 id is not of this split (id 1)"]


def test_the_hint_says_what_to_convert_and_that_helps(
    copy: tuple[Path, list[int], list[int]], user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir, there, gone = copy
    assert check(data_dir, csv_of(there), split="test_unseen") == 3
    said = capsys.readouterr().err
    assert "407 memes of test_unseen" in said
    complete = {**memes.public_copy()[0], **{f"hateful_memes/img/{i:05}.png": b"back" for i in range(4100)}}
    hint = said[said.rindex("mmfw convert") :].splitlines()[0]
    archive = hostile.plain_zip(user_dir / "complete.zip", complete)
    words = [str(archive) if word == "ARCHIVE" else word for word in typed(hint)]
    assert main(words[1:]) == 0
    capsys.readouterr()
    assert checked(capsys, data_dir, csv_of(sorted([*there, *gone])), 0)["needed"] == 2000
    assert checked(capsys, data_dir, csv_of(there), 3)["missing_left_out"] == 0
    assert check(data_dir, csv_of(there), split="test_unseen") == 3
    assert "mmfw predict --split test_unseen" in capsys.readouterr().err


def test_a_record_without_the_ids_cannot_tell_and_says_how_to_get_one_that_can(
    copy: tuple[Path, list[int], list[int]], user_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir, there, gone = copy
    file = Places.resolve(data_dir).dataset.record
    value = read_json(file)
    for summary in value["result"]["splits"].values():
        del summary["missing_ids"]
    write_json(file, value)
    assert check(data_dir, csv_of(there), split="test_unseen") == 3
    said = capsys.readouterr().err
    assert file.name in said and "407" in said
    words = typed(said[said.rindex("mmfw convert") :].splitlines()[0])
    assert main([str(user_dir / "copy.zip") if word == "ARCHIVE" else word for word in words[1:]]) == 0
    capsys.readouterr()
    assert checked(capsys, data_dir, csv_of(sorted([*there, *gone])), 0)["usable"]


def test_a_split_of_which_nothing_was_left_out_needs_no_more(
    copy: tuple[Path, list[int], list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir = copy[0]
    ids = [row.id for row in read_rows(Places.resolve(data_dir).dataset.split("test_seen"))]
    found = checked(capsys, data_dir, csv_of(ids), 0, "test_seen")
    assert (found["needed"], found["missing"]) == (1000, 0)


def test_the_help_of_predict_names_every_kind_of_ensemble() -> None:
    assert set(KINDS) == set(ensemble.KINDS)
