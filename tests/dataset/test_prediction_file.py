"""Prediction files: reading, ordering, writing."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.dataset import prediction_file
from mmf_win.dataset.prediction_file import Prediction
from mmf_win.errors import DataError


def test_repeated_id_in_the_annotations_is_an_error() -> None:
    predicted = [Prediction("1", 0.1, 0), Prediction("2", 0.2, 0)]
    with pytest.raises(DataError, match=r"1 ids repeated in the annotations \(first 2\)"):
        prediction_file.order_by_ids(predicted, ["1", "2", "2"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,proba\n1,0.5\n", "not a prediction file .no column 'label'"),
        ("id,proba,label\n1,x,0\n", "not a prediction file"),
        ("id,proba,label\n1,nan,0\n2,0.5,0\n", "1 memes is not a number .first id 1"),
    ],
)
def test_invalid_prediction_file_is_reported(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "raw.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        prediction_file.read_predictions(path)
    assert "raw.csv" in str(caught.value)


def test_written_predictions_read_back_exactly_without_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    memes = [Prediction("8291", 0.1 + 0.2, 0), Prediction("кот, 1", 1e-9, 1)]
    prediction_file.write_predictions(path, memes)
    assert b"\r" not in path.read_bytes()
    assert path.read_bytes().splitlines()[0] == b"id,proba,label"
    assert prediction_file.read_predictions(path) == memes
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # like a file saved by a spreadsheet
    assert prediction_file.read_predictions(path) == memes


BOTH = "3,0.25,0\n7,0.75,1\n"


def write_raw(attempt: Path, **files: str) -> Path:
    """Write prediction files as MMF does, and return their folder."""
    raw = attempt / "raw"
    raw.mkdir()
    for name, rows in files.items():
        (raw / f"{name}.csv").write_text(f"id,proba,label\n{rows}", encoding="utf-8")
    return raw


def test_reordered_and_repeated_rows_are_sorted_out(tmp_path: Path) -> None:
    raw = write_raw(tmp_path, a="3,0.25,0\n7,0.75,1\n3,0.25,0\n")
    assert prediction_file.read_mmf_probabilities(raw, ["7", "3"]) == [0.75, 0.25]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "MMF wrote 0 prediction files"),
        ({"a": BOTH, "b": BOTH}, "MMF wrote 2 prediction files"),
        ({"a": "3,0.25,0\n"}, r"1 ids missing \(first 7\)"),
        ({"a": f"{BOTH}8,0.5,0\n"}, r"1 ids unknown \(first 8\)"),
        ({"a": f"{BOTH}3,0.9,1\n"}, "id 3 was predicted twice"),
    ],
)
def test_incomplete_or_multiple_prediction_files_are_refused(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    raw = write_raw(tmp_path, **files)
    with pytest.raises(DataError, match=message):
        prediction_file.read_mmf_probabilities(raw, ["7", "3"])
