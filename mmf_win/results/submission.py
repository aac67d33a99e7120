"""Checks whether the challenge would take a CSV for a split, and lists everything that is wrong with it."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from mmf_win.console import first_few
from mmf_win.dataset.predictions import COLUMNS
from mmf_win.errors import DataError
from mmf_win.files import require_end

ORDER = "its rows are in another order than the annotations"
"""A problem of those who read by place; whoever reads by id can score the file."""


def problems(path: Path, ids: Sequence[str], left_out: Sequence[str] = ()) -> list[str]:
    """Everything that is wrong with a submission, a line each with the first places.

    ``ids`` are those of the split's annotation file, in its order, as :attr:`Row.shown_id` has them, and
    ``left_out`` those of the full split that were left out when the dataset was converted. Raises DataError
    where the file cannot be read, or is no CSV file in UTF-8.
    """
    try:
        require_end(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            header, rows = reader.fieldnames, [(str(reader.line_num), row) for row in reader]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV in UTF-8 ({error})") from None
    if header != list(COLUMNS):
        return [f"its first line must be {','.join(COLUMNS)}"]
    needed = {*ids, *left_out}
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
    wrong["missing ids"] = [id_ for id_ in [*ids, *left_out] if id_ not in counts]
    wrong["ids that are not of this split"] = [id_ for id_ in counts if id_ not in needed]
    wrong["ids that are there more than once"] = [id_ for id_, count in counts.items() if count > 1]
    told = [f"{what} ({len(places)}): {first_few(places)}" for what, places in wrong.items() if places]
    # The place of those that were left out is not known.
    return told or [ORDER] * ([id_ for id_ in found if id_ not in left_out] != list(ids))


def _is_probability(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1  # which NaN is not
    except ValueError:
        return False
