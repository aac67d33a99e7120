"""From MMF's predictions to a file that can be trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.dataset.predictions import Prediction, read_predictions
from mmf_win.errors import DataError
from mmf_win.protocol import Attempt
from mmf_win.worker.predictions import collect
from tests.worlds import memes

BOTH = "3,0.25,0\n7,0.75,1\n"


def request(folder: Path) -> Attempt:
    annotations = folder / "test.jsonl"
    annotations.write_bytes(memes.jsonl([{"id": i, "img": f"img/{i:05}.png", "text": ""} for i in (7, 3)]))
    report = folder / "reports" / "report.csv"
    return Attempt("predict", "mmbt", "mmf", str(folder), annotations=str(annotations), report=str(report))


def write_raw(request: Attempt, **files: str) -> None:
    request.attempt.raw.mkdir()
    for name, rows in files.items():
        (request.attempt.raw / f"{name}.csv").write_text(f"id,proba,label\n{rows}", encoding="utf-8")


def test_rows_that_a_sampler_reordered_and_repeated_are_put_right(tmp_path: Path) -> None:
    predicting = request(tmp_path)
    write_raw(predicting, a="3,0.25,0\n7,0.75,1\n3,0.25,0\n")
    collect(predicting)
    wanted = [Prediction("7", 0.75, 1), Prediction("3", 0.25, 0)]
    assert read_predictions(Path(str(predicting.report))) == wanted


def test_memes_that_the_user_calls_something_else_are_called_that(tmp_path: Path) -> None:
    predicting = request(tmp_path)
    rows: list[dict[str, object]] = [{"id": 7, "img": "/a.png", "text": "", "own_id": "кот"}]
    Path(str(predicting.annotations)).write_bytes(memes.jsonl(rows))
    write_raw(predicting, a="7,0.75,1\n")
    collect(predicting)
    assert [row.id for row in read_predictions(Path(str(predicting.report)))] == ["кот"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "MMF wrote 0 prediction files"),
        ({"a": BOTH, "b": BOTH}, "MMF wrote 2 prediction files"),
        ({"a": "3,0.25,0\n"}, r"1 ids missing \(first 7\)"),
        ({"a": f"{BOTH}8,0.5,0\n"}, r"1 ids unknown \(first 8\)"),
        ({"a": f"{BOTH}3,0.9,1\n"}, "id 3 was predicted twice"),
    ],
)
def test_nothing_is_written_where_there_is_not_one_file_with_all_memes(
    tmp_path: Path, files: dict[str, str], said: str
) -> None:
    predicting = request(tmp_path)
    write_raw(predicting, **files)
    with pytest.raises(DataError, match=said):
        collect(predicting)
    assert not Path(str(predicting.report)).exists()
