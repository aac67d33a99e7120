"""The file of predictions that the challenge takes: ``id,proba,label``, one row a meme.

It is written, read, and checked as the challenge does, with a list of everything that is wrong with it.
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
#: A problem of those who read by place; whoever reads by id can score the file.
WRONG_ORDER = "its rows are in another order than the annotations"


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


def order_by_ids(predictions: Sequence[Prediction], ids: Sequence[str]) -> list[Prediction]:
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


def read_mmf_probabilities(folder: Path, ids: Sequence[str]) -> list[float]:
    """The probabilities in the one file of predictions that MMF wrote to a folder, in the order of ``ids``.

    MMF repeats and reorders rows when several GPUs predict (its sampler fills up the last batch), and names
    no row that it lost. Raises DataError where ids are missing, repeated or unknown, or a probability is not
    a number.
    """
    raw = sorted(folder.glob("*.csv"))
    if len(raw) != 1:
        raise DataError(f"{folder.parent}: MMF wrote {len(raw)} prediction files instead of one")
    return [row.proba for row in order_by_ids(read_predictions(raw[0]), ids)]


def write_predictions(path: Path, predictions: Sequence[Prediction]) -> None:
    """Write a challenge submission, with ``\\n`` line ends on every system."""
    with atomic_replace(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([row.id, repr(row.proba), row.label] for row in predictions)


def find_submission_problems(path: Path, ids: Sequence[str], excluded_ids: Sequence[str] = ()) -> list[str]:
    """Everything that is wrong with a submission, a line each with the first places.

    ``ids`` are those of the split's annotation file, in its order, as :attr:`AnnotationRow.display_id` has
    them, and ``left_out`` those of the full split that were left out when the dataset was converted. Raises
    DataError
    where the file cannot be read, or is no CSV file in UTF-8.
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
        return [f"its first line must be {','.join(COLUMNS)}"]
    needed = {*ids, *excluded_ids}
    found: list[str] = []
    wrong: dict[str, list[str]] = defaultdict(list)
    for line, row in rows:
        id_ = row["id"]  # the release has 08291 where MMF writes 8291
        found.append(id_ if id_ in needed else re.sub("^0+(?=[0-9]+$)", "", id_))
        if None in row:
            wrong["lines with too many values"].append(line)
        if not _is_probability(row["proba"]):
            wrong["lines whose proba is not a number from 0 to 1"].append(line)
        if row["label"] not in ("0", "1"):
            wrong["lines whose label is neither 0 nor 1"].append(line)
    counts = Counter(found)
    wrong["missing ids"] = [id_ for id_ in [*ids, *excluded_ids] if id_ not in counts]
    wrong["ids that are not of this split"] = [id_ for id_ in counts if id_ not in needed]
    wrong["ids that are there more than once"] = [id_ for id_, count in counts.items() if count > 1]
    told = [f"{what} ({len(places)}): {summarize_list(places)}" for what, places in wrong.items() if places]
    # The place of those that were left out is not known.
    return told or [WRONG_ORDER] * ([id_ for id_ in found if id_ not in excluded_ids] != list(ids))


def _is_probability(text: str) -> bool:
    with suppress(ValueError):
        return 0 <= float(text) <= 1  # which NaN is not
    return False
