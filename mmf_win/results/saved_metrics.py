"""What is written beside a prediction file: its scores, and all that they depend on.

``<name>.metrics.json`` beside ``<name>.csv``::

    auroc, accuracy, average_precision, f1, brier, calibration_error
                         a number, or null where it is undefined; of ranks the last two are
    intervals            of auroc and accuracy → [low, high], 95 %; without what is null, and without an AUROC
                         whose variance by DeLong's method is 0
    rows, labelled       how many, and how many of them have a label
    hateful              how many of them are labelled 1; null where not all rows have a label
    full_rows            how many rows the full split has: more than rows where the conversion left some out;
                         null where no conversion wrote the annotation file, or it was changed since then
    threshold            a probability above it was labelled 1
    threshold_from       "default", or "best accuracy on <split>"
    split, annotations, annotations_sha256
    ensemble             how the members were blended; null for one alone
    members              run, checkpoint, checkpoint_sha256 and precision (fp32, bf16 or fp16) of each
    versions             of mmfw, MMF, PyTorch and Python that predicted
    created              seconds since the epoch
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmf_win.dataset.annotations import Row, labels_of
from mmf_win.dataset.predictions import Prediction
from mmf_win.files import read_json
from mmf_win.protocol import is_a
from mmf_win.results.probabilities import NO_PROBABILITIES

METRICS = {
    "auroc": "AUROC",
    "accuracy": "accuracy",
    "average_precision": "average precision",
    "f1": "F1",
    "brier": "Brier score",
    "calibration_error": "calibration error",
}
"""Their names for people, in the order of their weight in the challenge."""

_TYPES: dict[str, Any] = {
    **dict.fromkeys((*METRICS, "threshold"), float | None),
    **dict.fromkeys(("rows", "labelled", "hateful", "full_rows"), int | None),
    **dict.fromkeys(("threshold_from", "split", "annotations", "ensemble"), str | None),
    "intervals": dict[str, list[float]],
    "members": list[dict[str, str]],
    "versions": dict[str, str],
}


def path_beside(csv: Path) -> Path:
    """Where the record of a prediction file lies."""
    return csv.with_suffix(".metrics.json")


def read(csv: Path) -> dict[str, Any]:
    """The record beside a prediction file; empty where there is none that can be read."""
    try:
        record = read_json(path_beside(csv))
    except (OSError, ValueError):
        return {}
    if not isinstance(record, dict) or not all(
        is_a(record[key], _TYPES[key]) for key in record.keys() & _TYPES
    ):
        return {}
    of_members = {"run", "checkpoint", "checkpoint_sha256"}
    return record if all(of_members <= member.keys() for member in record.get("members", ())) else {}


def scores(
    rows: Sequence[Row], predictions: Sequence[Prediction], threshold: float, kind: str | None = None
) -> dict[str, Any]:
    """The part of a record that the labels decide.

    Args:
        rows: the annotations.
        predictions: one for each row, in the same order.
        threshold: a probability above it counts as hateful.
        kind: how they were blended.
    """
    labels = labels_of(rows)
    record: dict[str, Any] = dict.fromkeys(METRICS)
    labelled = sum(row.label is not None for row in rows)
    record |= {"intervals": {}, "rows": len(rows), "labelled": labelled, "hateful": None}
    record |= {"threshold": threshold}
    if labels is None:
        return record
    from mmf_win.results.metrics import measure

    record["hateful"] = sum(labels)
    probas = [row.proba for row in predictions]
    for name, score in measure(
        labels, probas, threshold=threshold, calibrated=kind not in NO_PROBABILITIES
    ).items():
        if score.value is not None:
            record[name] = score.value
            if score.low is not None:
                record["intervals"][name] = [score.low, score.high]
    return record
