"""``mmfw check-submission``, and what ``mmfw predict`` says before anything is predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.commands.predict import KINDS
from mmf_win.paths import Places
from mmf_win.results import ensemble
from tests.worlds import memes


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


def test_the_help_of_predict_names_every_kind_of_ensemble() -> None:
    assert set(KINDS) == set(ensemble.KINDS)
