"""The record that is saved with a prediction file: its metrics and everything they depend on.

``<name>.metrics.json`` next to ``<name>.csv``::

    auroc, accuracy, average_precision, f1, brier, calibration_error
                         a number, or null if undefined; the last two are null for ranks
    intervals            [low, high] of the 95 % intervals of auroc and accuracy; an undefined metric is
                         absent, and so is an AUROC whose variance by DeLong's method is 0
    rows, labelled       number of rows, and of rows with a label
    hateful              number of rows with the label 1; null unless all rows have a label
    full_rows            rows of the full split, more than rows if the conversion excluded some; null if the
                         annotation file was not written by a conversion or was changed since
    threshold            rows with a probability above it are labelled 1
    threshold_from       "default", or "best accuracy on <split>"
    split, annotations, annotations_sha256
    ensemble             blend method; null for a single member
    members              run, checkpoint, checkpoint_sha256 and precision (fp32, bf16 or fp16) of each
    versions             versions of mmfw, MMF, PyTorch and Python used for the prediction
    created              seconds since the epoch
"""

from __future__ import annotations

from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

from mmf_win.files import read_json

#: Display names of the metrics, in the order of their importance in the challenge.
METRIC_TITLES = {
    "auroc": "AUROC",
    "accuracy": "accuracy",
    "average_precision": "average precision",
    "f1": "F1",
    "brier": "Brier score",
    "calibration_error": "calibration error",
}


def metrics_path(csv: Path) -> Path:
    """Return the path of the record of a prediction file."""
    return csv.with_suffix(".metrics.json")


def read_metrics(csv: Path) -> dict[str, Any]:
    """Return the record of a prediction file, or an empty dict if it is missing or unreadable."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        record = read_json(metrics_path(csv))
        numbers = [record["threshold"], *(v for name in METRIC_TITLES if (v := record.get(name)) is not None)]
        member_keys = ("run", "checkpoint", "checkpoint_sha256")
        members = [{key: str(member[key]) for key in member_keys} for member in record.get("members", ())]
        if all(map(isfinite, numbers)):
            return {**record, "members": members, "versions": dict(record.get("versions", {}))}
    return {}
