"""``python -m mmf_win.export.serving FOLDER REQUEST``: the process of an exported model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mmf_win.errors import UnreadableImageError
from mmf_win.files import read_json, write_json
from mmf_win.protocol import AttemptOutcome, AttemptRequest
from mmf_win.protocol.attempt import PredictTask, ServeTask
from mmf_win.protocol.serving import serve_predictions

if TYPE_CHECKING:
    from mmf_win.export.run import Model


def main(folder: Path, asked: AttemptRequest) -> None:
    """Load the model, and predict the rows of a file, or answer until the parent is gone."""
    try:
        from mmf_win.export import run
    except ImportError as error:  # a package is missing or broken
        _fail(asked, str(error))
    try:
        model = run.Model(folder)
        if not isinstance(asked.task, ServeTask):
            _predict_rows(model, asked)
            return
    except Exception as error:
        _fail(asked, run.describe_error(error))

    def predict(rows: list[dict[str, Any]]) -> list[float]:
        try:
            return model.predict([{**row, "img": Path(row["img"])} for row in rows])
        except run.Unusable as error:
            raise UnreadableImageError(error.reason) from None

    serve_predictions(asked, predict)


def _fail(asked: AttemptRequest, reason: str) -> NoReturn:
    AttemptOutcome("mmf", reason).save(asked.folder.outcome_file)
    sys.exit(f"error: {reason}")


def _predict_rows(model: Model, asked: AttemptRequest) -> None:
    assert isinstance(asked.task, PredictTask) and asked.task.predictions_file is not None
    rows = read_json(Path(asked.task.annotations_file))

    def tell(done: int) -> None:
        asked.write_event("predict", done=done, total=len(rows))

    probas, timings = model.predict_all(rows, asked.eval_batch or len(rows), tell)
    write_json(Path(asked.task.predictions_file), {"probas": probas, "timings": timings})


if __name__ == "__main__":
    main(Path(sys.argv[1]), AttemptRequest.load(Path(sys.argv[2])))
