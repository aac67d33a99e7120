"""The file of predictions that the challenge takes: ``id,proba,label``, one row a meme."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmf_win.errors import DataError
from mmf_win.files import replacing

COLUMNS = ("id", "proba", "label")


@dataclass(frozen=True)
class Prediction:
    """One row of a prediction file: the probability that meme ``id`` is hateful, and the label chosen."""

    id: str
    proba: float
    label: int


def read_predictions(path: Path) -> list[Prediction]:
    """The rows of a CSV of ``id``, ``proba`` and ``label``; a DataError where one is missing or no number."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            rows = [Prediction(r["id"], float(r["proba"]), int(r["label"])) for r in csv.DictReader(file)]
        except KeyError as error:
            raise DataError(f"{path}: not a prediction file (there is no column {error})") from None
        except (TypeError, ValueError, csv.Error) as error:
            raise DataError(f"{path}: not a prediction file ({error})") from None
    if broken := [(row.id, n) for n, row in enumerate(rows, 2) if not math.isfinite(row.proba)]:
        first = "first id {}, line {}".format(*broken[0])
        message = f"{path}: the model's output for {len(broken)} memes is not a number ({first})"
        raise DataError(message, hint="the training has diverged; train again with a smaller learning rate")
    return rows


def in_order(predictions: Sequence[Prediction], ids: Sequence[str]) -> list[Prediction]:
    """``predictions`` in the order of ``ids``, each exactly once.

    A repeated row is dropped when it says the same as the first. Raises DataError where an id is missing,
    unknown, or predicted twice with different results.
    """
    by_id: dict[str, Prediction] = {}
    for row in predictions:
        first = by_id.setdefault(row.id, row)
        if not math.isclose(first.proba, row.proba, abs_tol=1e-6):
            raise DataError(f"id {row.id} was predicted twice: {first.proba} and {row.proba}")
    counts = Counter(ids)
    problems = {
        "missing": [i for i in counts if i not in by_id],
        "unknown": [i for i in by_id if i not in counts],
        "repeated in the annotations": [i for i, n in counts.items() if n > 1],
    }
    found = [f"{len(some)} ids {what} (first {some[0]})" for what, some in problems.items() if some]
    if found:
        raise DataError("the predictions do not fit the annotations: " + ", ".join(found))
    return [by_id[i] for i in ids]


def write_predictions(path: Path, predictions: Sequence[Prediction]) -> None:
    """Write a challenge submission, with ``\\n`` line ends on every system."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([row.id, repr(row.proba), row.label] for row in predictions)
