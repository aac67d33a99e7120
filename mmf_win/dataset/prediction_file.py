"""Prediction files in the challenge's format: ``id,proba,label``, one row per meme.

They are written, read and checked by the challenge's rules, with a list of all problems.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mmf_win.console import summarize_list
from mmf_win.errors import DataError
from mmf_win.files import atomic_replace, require_no_special_file

COLUMNS = ("id", "proba", "label")
#: A problem for programs that read by position; those that read by id can score the file.
WRONG_ORDER = "rows are not in the order of the annotations"


@dataclass(frozen=True)
class Prediction:
    """Row of a prediction file: probability that the meme ``id`` is hateful, and the predicted label."""

    id: str
    proba: float
    label: int


def read_predictions(path: Path) -> list[Prediction]:
    """Read a prediction file.

    Returns:
        The rows, in order.

    Raises:
        DataError: A column is missing, or a value is not a number.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            rows = [Prediction(r["id"], float(r["proba"]), int(r["label"])) for r in csv.DictReader(file)]
        except KeyError as error:
            raise DataError(f"{path}: not a prediction file (no column {error})") from None
        except (TypeError, ValueError, csv.Error) as error:
            raise DataError(f"{path}: not a prediction file ({error})") from None
    if not_finite := [(row.id, n) for n, row in enumerate(rows, 2) if not math.isfinite(row.proba)]:
        first = "first id {}, line {}".format(*not_finite[0])
        message = f"{path}: the model's output for {len(not_finite)} memes is not a number ({first})"
        raise DataError(message, hint="train again with a smaller learning rate; the training has diverged")
    return rows


def order_by_ids(predictions: Sequence[Prediction], ids: Sequence[str]) -> list[Prediction]:
    """Return the predictions in the order of ``ids``, each exactly once.

    Repeated rows with the same probability are dropped.

    Returns:
        One prediction per id.

    Raises:
        DataError: An id is missing, unknown, repeated, or predicted twice with different probabilities.
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
    messages = [f"{len(group)} ids {problem} (first {group[0]})" for problem, group in problems.items() if group]
    if messages:
        raise DataError("the predictions do not match the annotations: " + ", ".join(messages))
    return [by_id[i] for i in ids]


def read_mmf_probabilities(folder: Path, ids: Sequence[str]) -> list[float]:
    """Read the probabilities from MMF's single prediction file in a folder, in the order of ``ids``.

    MMF repeats and reorders rows when several GPUs predict (its sampler fills the last batch), and does not
    report lost rows.

    Returns:
        One probability per id.

    Raises:
        DataError: Ids are missing, repeated or unknown, or a probability is not a number.
    """
    files = sorted(folder.glob("*.csv"))
    if len(files) != 1:
        raise DataError(f"{folder.parent}: MMF wrote {len(files)} prediction files instead of one")
    return [row.proba for row in order_by_ids(read_predictions(files[0]), ids)]


def write_predictions(path: Path, predictions: Sequence[Prediction]) -> None:
    r"""Write a challenge submission, with ``\n`` line ends on every system."""
    with atomic_replace(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([row.id, repr(row.proba), row.label] for row in predictions)


def find_submission_problems(path: Path, ids: Sequence[str], excluded_ids: Sequence[str] = ()) -> list[str]:
    """Check a submission, and return one line for each kind of problem.

    Args:
        path: The submission.
        ids: :attr:`AnnotationRow.display_id` of the rows of the annotation file, in its order.
        excluded_ids: Ids of the full split that were excluded when the dataset was converted.

    Returns:
        The problems with the first places.

    Raises:
        DataError: The file cannot be read as CSV in UTF-8.
    """
    try:
        require_no_special_file(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            header, rows = reader.fieldnames, [(str(reader.line_num), row) for row in reader]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV in UTF-8 ({error})") from None
    if header != list(COLUMNS):
        return [f"the first line must be {','.join(COLUMNS)}"]
    expected_ids = {*ids, *excluded_ids}
    found_ids: list[str] = []
    places: dict[str, list[str]] = defaultdict(list)
    for line, row in rows:
        id_ = row["id"]  # 08291 in the release, 8291 in MMF's output
        found_ids.append(id_ if id_ in expected_ids else re.sub("^0+(?=[0-9]+$)", "", id_))
        if None in row:
            places["lines with too many values"].append(line)
        if not _is_probability(row["proba"]):
            places["lines whose proba is not a number from 0 to 1"].append(line)
        if row["label"] not in ("0", "1"):
            places["lines whose label is neither 0 nor 1"].append(line)
    counts = Counter(found_ids)
    places["missing ids"] = [id_ for id_ in [*ids, *excluded_ids] if id_ not in counts]
    places["ids that are not in this split"] = [id_ for id_ in counts if id_ not in expected_ids]
    places["duplicate ids"] = [id_ for id_, count in counts.items() if count > 1]
    problems = [f"{problem} ({len(lines)}): {summarize_list(lines)}" for problem, lines in places.items() if lines]
    # The positions of excluded ids are unknown.
    return problems or [WRONG_ORDER] * ([id_ for id_ in found_ids if id_ not in excluded_ids] != list(ids))


def _is_probability(text: str) -> bool:
    with suppress(ValueError):
        return 0 <= float(text) <= 1  # False for NaN
    return False
