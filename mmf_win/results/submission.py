"""Checks whether the challenge would take a CSV for a split, and lists everything that is wrong with it."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmf_win.console import first_few
from mmf_win.dataset.predictions import COLUMNS, Prediction
from mmf_win.errors import DataError

_BOM = "\ufeff"
_INTEGER = re.compile(r"-?[0-9]{1,18}")  # 64 bits, as whoever scores it reads ids
_FLOAT = re.compile(r"[0-9a-z+.-]+", re.IGNORECASE)  # no digits of other scripts, no 1_000 as in Python
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class Problem:
    """What is wrong with a submission.

    Attributes:
        text: in one line, with the first places.
        fatal: it cannot be scored as it is. What is not fatal, a careful reader gets over.
    """

    text: str
    fatal: bool = True


@dataclass(frozen=True)
class Submission:
    """A prediction file that was looked at.

    Attributes:
        predictions: its usable rows, in the file's order.
        problems: what is wrong with it, the fatal ones first.
        missing: how many of the ids that it needs are not in it.
        missing_left_out: how many of these were left out when the dataset was converted.
    """

    predictions: tuple[Prediction, ...]
    problems: tuple[Problem, ...]
    missing: int = 0
    missing_left_out: int = 0

    @property
    def usable(self) -> bool:
        """Whether it can be scored as it is."""
        return not any(problem.fatal for problem in self.problems)


def check(path: Path, ids: Sequence[str], left_out: Sequence[str] = ()) -> Submission:
    """Look for everything that is wrong with a submission.

    Args:
        path: the CSV.
        ids: those of the split's annotation file, in its order, as :attr:`Row.shown_id` has them.
        left_out: those of the full split that were left out when the dataset was converted.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        content = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        return Submission((), (Problem("it is not a text file in UTF-8"),))
    reader = _Reader(ids, left_out)
    problems = sorted(reader.problems(content), key=lambda problem: not problem.fatal)
    found = set(reader.found)
    lacking = sum(id_ not in found for id_ in left_out)
    missing = sum(id_ not in found for id_ in ids) + lacking
    return Submission(tuple(reader.predictions), tuple(problems), missing, lacking)


class _Reader:
    """Reads what can be read, and tells what is wrong with the rest.

    Attributes:
        predictions: the rows in which nothing is wrong.
        found: the id of every row that has one, whatever else is wrong with the row.
    """

    def __init__(self, ids: Sequence[str], left_out: Sequence[str]) -> None:
        self.predictions: list[Prediction] = []
        self.found: list[str] = []
        self._ids = ids
        self._left_out = left_out
        self._known = {*ids, *left_out}

    def problems(self, content: str) -> Iterator[Problem]:
        """Read a file; everything that is wrong with it."""
        text = content.removeprefix(_BOM)
        if not text.strip():
            yield Problem("it is empty")
            return
        if text != content:
            yield Problem("it begins with a byte order mark, which not every reader skips", fatal=False)
        if "\r" in text:
            yield Problem(r"its lines end with \r\n or \r instead of \n", fatal=False)
        header = re.split(r"[\r\n]", text, maxsplit=1)[0]
        # A file that is not separated by commas has no comma in its header.
        delimiter = next((d for d in _DELIMITERS if d in header), ",")
        if delimiter != ",":
            yield Problem(f"its values are separated by {_DELIMITERS[delimiter]} instead of commas")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        lines: list[tuple[int, list[str]]] = []
        try:
            for row in reader:
                lines.append((reader.line_num, row))
        except csv.Error as error:
            yield Problem(f"line {reader.line_num} is not CSV ({error})")
        if lines and lines[0][1] == list(COLUMNS):
            yield from self._rows(lines[1:])
            yield from self._compared()
        else:
            yield Problem(f"its first line must be {','.join(COLUMNS)}, not {header[:80]!r}")

    def _rows(self, lines: Sequence[tuple[int, list[str]]]) -> Iterator[Problem]:
        numbered = all(map(str.isdecimal, self._known))
        faults: dict[str, list[str]] = defaultdict(list)
        filled = [(line, row) for line, row in lines if row not in ([], [""])]
        for line, row in filled:
            if len(row) != len(COLUMNS):
                faults[f"without exactly {len(COLUMNS)} values"].append(str(line))
                continue
            id_, proba, label = row
            if id_ not in self._known and _INTEGER.fullmatch(id_):
                id_ = str(int(id_))  # the release has 08291 where MMF writes 8291
            wrong = list(_wrong_values(proba, label))
            if not numbered or _INTEGER.fullmatch(id_):
                self.found.append(id_)
            else:
                wrong.insert(0, "whose id is not a whole number")
            for fault in wrong:
                faults[fault].append(str(line))
            if not wrong:
                self.predictions.append(Prediction(id_, float(proba), int(label)))
        for fault, where in faults.items():
            rows = "1 row" if len(where) == 1 else f"{len(where)} rows"
            yield Problem(f"{rows} {fault} (line{'s' * (len(where) > 1)} {first_few(where)})")
        if blank := len(lines) - len(filled):
            yield Problem(f"{blank} lines are blank", fatal=False)

    def _compared(self) -> Iterator[Problem]:
        """With the ids that it needs."""
        counts = Counter(self.found)
        kinds = {
            "missing": [id_ for id_ in self._ids if id_ not in counts],
            "missing that the full split has, and that were left out when the dataset was converted": [
                id_ for id_ in self._left_out if id_ not in counts
            ],
            "not of this split": [id_ for id_ in counts if id_ not in self._known],
            "there more than once": [id_ for id_, n in counts.items() if n > 1],
        }
        for what, ids in kinds.items():
            if ids:
                are, s = ("id is", "") if len(ids) == 1 else ("ids are", "s")
                yield Problem(f"{len(ids)} {are} {what} (id{s} {first_few(ids)})")
        apart = set(self._left_out)  # their place among the others is not known
        if not any(kinds.values()) and [id_ for id_ in self.found if id_ not in apart] != list(self._ids):
            yield Problem(
                "its rows are in another order than the annotations; only a reader that goes by id scores it",
                fatal=False,
            )


def _wrong_values(proba: str, label: str) -> Iterator[str]:
    try:
        number = float(proba) if _FLOAT.fullmatch(proba.strip(" ")) else None
    except ValueError:
        number = None
    if number is None:
        yield "whose proba is not a number"
    elif math.isnan(number):
        yield "whose proba is NaN"
    elif not 0 <= number <= 1:
        yield "whose proba is not within 0 and 1"
    if label not in ("0", "1"):
        yield "whose label is neither 0 nor 1"
