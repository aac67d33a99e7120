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

from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

from mmf_win.files import read_json

#: Their names for people, in the order of their weight in the challenge.
METRIC_TITLES = {
    "auroc": "AUROC",
    "accuracy": "accuracy",
    "average_precision": "average precision",
    "f1": "F1",
    "brier": "Brier score",
    "calibration_error": "calibration error",
}


def metrics_path(csv: Path) -> Path:
    """Where the record of a prediction file lies."""
    return csv.with_suffix(".metrics.json")


def read_metrics(csv: Path) -> dict[str, Any]:
    """The record beside a prediction file; empty where there is none that can be read."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        record = read_json(metrics_path(csv))
        numbers = [record["threshold"], *(v for name in METRIC_TITLES if (v := record.get(name)) is not None)]
        named = ("run", "checkpoint", "checkpoint_sha256")
        members = [{key: str(member[key]) for key in named} for member in record.get("members", ())]
        if all(map(isfinite, numbers)):
            return {**record, "members": members, "versions": dict(record.get("versions", {}))}
    return {}
