"""From the file that MMF's predict wrote to one that can be trusted.

MMF repeats and reorders rows when several GPUs predict (its sampler fills up the last batch), and names no
row that it lost. The result here has exactly the annotation file's ids, in its order, or is not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmf_win.dataset.annotations import Row, read_rows
from mmf_win.dataset.predictions import Prediction, in_order, read_predictions, write_predictions
from mmf_win.errors import DataError
from mmf_win.files import write_json
from mmf_win.protocol import Request


def collect(request: Request) -> None:
    """Check the predictions of this attempt and write them in order to ``request.report``.

    Raises:
        DataError: ids are missing, repeated or unknown, or a probability is not a number.
    """
    assert request.annotations is not None and request.report is not None
    rows = read_rows(Path(request.annotations))
    raw = sorted(request.attempt.raw.glob("*.csv"))
    if len(raw) != 1:
        raise DataError(f"{request.attempt_dir}: MMF wrote {len(raw)} prediction files instead of one")
    predictions = in_order(read_predictions(raw[0]), [row.id for row in rows])
    report = Path(request.report)
    report.parent.mkdir(parents=True, exist_ok=True)
    write_predictions(report, predictions)
    write_json(report.with_suffix(".metrics.json"), score(rows, predictions))


def score(rows: Sequence[Row], predictions: Sequence[Prediction]) -> dict[str, float | int | None]:
    """AUROC and accuracy by scikit-learn, or None where the labels do not allow them.

    Args:
        rows: the annotations.
        predictions: one for each row, in the same order.
    """
    labels = [row.label for row in rows]
    if any(label is None for label in labels):
        return {"rows": len(rows), "auroc": None, "accuracy": None}
    from sklearn.metrics import accuracy_score, roc_auc_score

    both_classes = len(set(labels)) == 2
    return {
        "rows": len(rows),
        "auroc": float(roc_auc_score(labels, [p.proba for p in predictions])) if both_classes else None,
        "accuracy": float(accuracy_score(labels, [p.label for p in predictions])),
    }
