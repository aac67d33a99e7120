"""From MMF's predictions to a file that can be trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.dataset.predictions import read_predictions
from mmf_win.errors import DataError
from mmf_win.protocol import Attempt
from mmf_win.worker.predictions import collect
from tests.worlds import memes


def request(folder: Path) -> Attempt:
    annotations = folder / "test.jsonl"
    annotations.write_bytes(memes.jsonl([{"id": i, "img": f"img/{i:05}.png", "text": ""} for i in (7, 3)]))
    report = folder / "reports" / "report.csv"
    return Attempt("predict", "mmbt", "mmf", str(folder), annotations=str(annotations), report=str(report))


def write_raw(request: Attempt, name: str, text: str) -> None:
    request.attempt.raw.mkdir(exist_ok=True)
    (request.attempt.raw / name).write_text(text, encoding="utf-8")


def test_rows_that_a_sampler_reordered_and_repeated_are_put_right(tmp_path: Path) -> None:
    predicting = request(tmp_path)
    write_raw(predicting, "a.csv", "id,proba,label\n3,0.25,0\n7,0.75,1\n3,0.25,0\n")
    collect(predicting)
    assert [row.id for row in read_predictions(Path(str(predicting.report)))] == ["7", "3"]


def test_memes_that_the_user_calls_something_else_are_called_that(tmp_path: Path) -> None:
    predicting = request(tmp_path)
    rows: list[dict[str, object]] = [{"id": 7, "img": "/a.png", "text": "", "own_id": "кот"}]
    Path(str(predicting.annotations)).write_bytes(memes.jsonl(rows))
    write_raw(predicting, "a.csv", "id,proba,label\n7,0.75,1\n")
    collect(predicting)
    assert [row.id for row in read_predictions(Path(str(predicting.report)))] == ["кот"]


@pytest.mark.parametrize("names", [[], ["a.csv", "b.csv"]])
def test_nothing_is_written_where_mmf_did_not_write_one_file(tmp_path: Path, names: list[str]) -> None:
    predicting = request(tmp_path)
    for name in names:
        write_raw(predicting, name, "id,proba,label\n3,0.25,0\n7,0.75,1\n")
    with pytest.raises(DataError, match=f"MMF wrote {len(names)} prediction files"):
        collect(predicting)
    assert not Path(str(predicting.report)).exists()


def test_nothing_is_written_when_a_meme_is_missing(tmp_path: Path) -> None:
    predicting = request(tmp_path)
    write_raw(predicting, "a.csv", "id,proba,label\n3,0.25,0\n")
    with pytest.raises(DataError, match="1 ids missing"):
        collect(predicting)
    assert not Path(str(predicting.report)).exists()
