"""From MMF's predictions to a file that can be trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmf_win.bridge import predictions
from mmf_win.bridge.predictions import Prediction
from mmf_win.dataset.annotations import Row
from mmf_win.errors import DataError
from mmf_win.protocol import Request


def predicted(*ids: int) -> list[Prediction]:
    return [Prediction(i, i / 10, int(i > 5)) for i in ids]


def rows(labels: list[int | None]) -> list[Row]:
    return [Row(i, f"img/{i}.png", "", label, i) for i, label in enumerate(labels)]


def test_the_order_is_that_of_the_annotations() -> None:
    assert [p.id for p in predictions.in_order(predicted(1, 2, 3), [3, 1, 2])] == [3, 1, 2]


def test_rows_that_a_sampler_repeated_are_dropped() -> None:
    assert predictions.in_order(predicted(1, 2, 1), [1, 2]) == predicted(1, 2)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2, 3], r"1 ids missing \(first 3\)"),
        ([1], r"1 ids unknown \(first 2\)"),
        ([1, 2, 2], r"1 ids repeated in the annotations \(first 2\)"),
    ],
)
def test_ids_that_do_not_fit_are_an_error(ids: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        predictions.in_order(predicted(1, 2), ids)


def test_two_answers_for_one_meme_are_an_error() -> None:
    with pytest.raises(DataError, match="id 1 was predicted twice"):
        predictions.in_order([Prediction(1, 0.2, 0), Prediction(1, 0.9, 1)], [1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,proba\n1,0.5\n", "not a prediction file"),
        ("id,proba,label\nx,0.5,0\n", "not a prediction file"),
        ("id,proba,label\n1,nan,0\n2,0.5,0\n", "1 memes is not a number .first id 1"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "raw.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        predictions.read_predictions(path)
    assert "raw.csv" in str(caught.value)


def test_what_is_written_reads_back_exactly_and_has_no_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    memes = [Prediction(8291, 0.1 + 0.2, 0), Prediction(42953, 1e-9, 1)]
    predictions.write_predictions(path, memes)
    assert b"\r" not in path.read_bytes()
    assert path.read_bytes().splitlines()[0] == b"id,proba,label"
    assert predictions.read_predictions(path) == memes


def test_nothing_is_written_when_mmf_wrote_nothing(tmp_path: Path) -> None:
    annotations = tmp_path / "test.jsonl"
    annotations.write_text('{"id": 1, "img": "img/00001.png", "text": ""}\n', encoding="utf-8")
    report = tmp_path / "report.csv"
    request = Request(
        "predict", "mmbt", "mmf", "run", str(tmp_path), annotations=str(annotations), report=str(report)
    )
    with pytest.raises(DataError, match="MMF wrote 0 prediction files"):
        predictions.collect(request)
    assert not report.exists()


@pytest.mark.torch
def test_scores_agree_with_a_case_computed_by_hand() -> None:
    """Of the four pairs of a hateful and a benign meme, three are in the right order."""
    memes = [Prediction(0, 0.1, 0), Prediction(1, 0.4, 0), Prediction(2, 0.35, 0), Prediction(3, 0.8, 1)]
    score = predictions.score(rows([0, 0, 1, 1]), memes)
    assert score == {"rows": 4, "auroc": 0.75, "accuracy": 0.75}


@pytest.mark.torch
def test_one_class_alone_has_an_accuracy_and_no_auroc() -> None:
    score = predictions.score(rows([1, 1]), [Prediction(0, 0.9, 1), Prediction(1, 0.2, 0)])
    assert score == {"rows": 2, "auroc": None, "accuracy": 0.5}


def test_without_labels_there_is_no_score() -> None:
    score = predictions.score(rows([None, 1]), predicted(1, 2))
    assert json.loads(json.dumps(score)) == {"rows": 2, "auroc": None, "accuracy": None}
