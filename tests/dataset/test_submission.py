"""Problems of submissions, and errors before a submission is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.commands.progress import RunDisplay
from mmf_win.dataset import prediction_file
from mmf_win.dataset.prediction_file import Prediction, write_predictions
from mmf_win.errors import DataError, DatasetError
from mmf_win.results import evaluation
from tests.worlds import report_world

IDS = ["8291", "42953", "12"]
GOOD = "id,proba,label\n8291,0.25,0\n42953,1e-3,0\n12,1.0,1\n"


def find_problems(tmp_path: Path, content: str, excluded_ids: tuple[str, ...] = ()) -> list[str]:
    """Return the problems of a submission with this content."""
    path = tmp_path / "predictions.csv"
    path.write_bytes(content.encode())
    return prediction_file.find_submission_problems(path, IDS, excluded_ids)


def test_submission_written_by_mmfw_is_valid(tmp_path: Path) -> None:
    rows = [Prediction("8291", 0.1 + 0.2, 0), Prediction("42953", 1e-9, 0), Prediction("12", 1.0, 1)]
    write_predictions(tmp_path / "out.csv", rows)
    assert prediction_file.find_submission_problems(tmp_path / "out.csv", IDS) == []


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\n", "\n\n"),
        GOOD.replace("id,proba,label", '"id","proba","label"'),
        GOOD.replace("8291", "08291"),
    ],
    ids=["byte order mark", "Windows", "blank lines", "quotes", "zeros before the id"],
)
def test_submission_variants_of_other_programs_are_valid(tmp_path: Path, content: str) -> None:
    assert find_problems(tmp_path, content) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("12,1.0,1\n", "", "missing ids (1): 12"),
        ("12,1.0,1\n", "13,1.0,1\n", "ids that are not in this split (1): 13"),
        ("12,1.0,1\n", "12,1.0,1\n012,1.0,1\n", "duplicate ids (1): 12"),
        ("12,1.0,1", "x,1.0,1", "ids that are not in this split (1): x"),
        ("0.25", "nan", "lines whose proba is not a number from 0 to 1 (1): 2"),
        ("0.25", "", "lines whose proba is not a number from 0 to 1 (1): 2"),
        ("0.25", "1.01", "lines whose proba is not a number from 0 to 1 (1): 2"),
        ("0.25", "-0.1", "lines whose proba is not a number from 0 to 1 (1): 2"),
        ("12,1.0,1", "12,1.0,2", "lines whose label is neither 0 nor 1 (1): 4"),
        ("12,1.0,1", "12,1.0,1.0", "lines whose label is neither 0 nor 1 (1): 4"),
        ("12,1.0,1", "12,1.0", "lines whose label is neither 0 nor 1 (1): 4"),
    ],
)
def test_problem_is_reported_with_its_place(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert problem in find_problems(tmp_path, GOOD.replace(old, new))


@pytest.mark.parametrize("content", ["", "8291,0.25,0\n", GOOD.replace("id,", "id, "), GOOD.replace(",", ";")])
def test_wrong_header_is_the_only_reported_problem(tmp_path: Path, content: str) -> None:
    [problem] = find_problems(tmp_path, content)
    assert problem.startswith("the first line must be id,proba,label")


@pytest.mark.parametrize("content", [None, GOOD.encode("utf-16"), GOOD.encode() + b'12,"' + b"x" * 200_000])
def test_missing_or_unreadable_submission_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "predictions.csv"
    if content is not None:
        path.write_bytes(content)
    message = "No such file" if content is None else "cannot be read as CSV in UTF-8"
    with pytest.raises(DataError, match=rf"predictions\.csv: {message}"):
        prediction_file.find_submission_problems(path, IDS)


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    assert find_problems(tmp_path, "id,proba,label\n8291,nan,0\n8291,0.5,0\nx,2,7\n99,0.1,1,\n") == [
        "lines whose proba is not a number from 0 to 1 (2): 2, 4",
        "lines whose label is neither 0 nor 1 (1): 4",
        "lines with too many values (1): 5",
        "missing ids (2): 42953, 12",
        "ids that are not in this split (2): x, 99",
        "duplicate ids (1): 8291",
    ]


def test_many_problems_of_one_kind_are_one_line(tmp_path: Path) -> None:
    rows = "".join(f"{id_},2,0\n" for id_ in range(10_000))
    assert "lines whose proba is not a number from 0 to 1 (10000): 2, 3, 4 …" in find_problems(
        tmp_path, f"id,proba,label\n{rows}"
    )


@pytest.mark.parametrize(
    ("rows", "problems"),
    [
        ("77,0.5,0\n5,0.5,0\n", []),
        ("", ["missing ids (2): 77, 5"]),
        ("5,0.5,0\n", ["missing ids (1): 77"]),
        ("77,0.5,0\n5,0.5,0\n13,0.5,0\n", ["ids that are not in this split (1): 13"]),
        ("77,0.5,0\n5,0.5,0\n5,0.5,0\n", ["duplicate ids (1): 5"]),
    ],
    ids=[
        "with excluded memes",
        "without excluded memes",
        "without one excluded meme",
        "with an unknown id",
        "with a duplicate id",
    ],
)
def test_ids_excluded_at_conversion_are_required(tmp_path: Path, rows: str, problems: list[str]) -> None:
    assert find_problems(tmp_path, GOOD + rows, ("77", "5")) == problems


def test_order_is_checked_without_excluded_ids(tmp_path: Path) -> None:
    head, *rows = GOOD.splitlines(keepends=True)
    mixed = [rows[0], "5,0.5,0\n", rows[1], "77,0.5,0\n", rows[2]]
    assert find_problems(tmp_path, "".join([head, *mixed]), ("77", "5")) == []
    assert find_problems(tmp_path, "".join([head, *reversed(mixed)]), ("77", "5")) == [prediction_file.WRONG_ORDER]


def test_prediction_of_a_split_without_memes_is_refused(tmp_path: Path) -> None:
    world = report_world.make(tmp_path, groups=0)  # no images are drawn, so Pillow is not needed
    world.write_annotations([], "nobody")
    run_checkpoint = evaluation.RunCheckpoint(world.add_run(), tmp_path / "best.ckpt")
    run_checkpoint.checkpoint.touch()
    with pytest.raises(DatasetError, match=r"nobody\.jsonl: no memes found"):
        options = evaluation.PredictionOptions(split=["nobody"])
        list(evaluation.predict_and_score([run_checkpoint], world.save, options, RunDisplay))
