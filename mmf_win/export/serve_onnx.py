"""``python -m mmf_win.export.serve_onnx FOLDER REQUEST``: the child process of an exported model."""

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


def main(folder: Path, request: AttemptRequest) -> None:
    """Load the model and predict the rows of a file, or answer requests until the parent process exits."""
    try:
        from mmf_win.export import run
    except ImportError as error:  # a package is missing or cannot be loaded
        _exit_with_error(request, str(error))
    try:
        model = run.Model(folder)
        if not isinstance(request.task, ServeTask):
            _predict_rows(model, request)
            return
    except Exception as error:
        _exit_with_error(request, run.describe_error(error))

    def predict(rows: list[dict[str, Any]]) -> list[float]:
        try:
            return model.predict([{**row, "img": Path(row["img"])} for row in rows])
        except run.UnusableInputError as error:
            raise UnreadableImageError(error.reason) from None

    serve_predictions(request, predict)


def _exit_with_error(request: AttemptRequest, reason: str) -> NoReturn:
    AttemptOutcome("mmf", reason).save(request.folder.outcome_file)
    sys.exit(f"error: {reason}")


def _predict_rows(model: Model, request: AttemptRequest) -> None:
    assert isinstance(request.task, PredictTask) and request.task.predictions_file is not None
    rows = read_json(Path(request.task.annotations_file))

    def write_progress(done: int) -> None:
        request.write_event("predict", done=done, total=len(rows))

    probas, timings = model.predict_all(rows, request.eval_batch or len(rows), write_progress)
    write_json(Path(request.task.predictions_file), {"probas": probas, "timings": timings})


if __name__ == "__main__":
    main(Path(sys.argv[1]), AttemptRequest.load(Path(sys.argv[2])))
