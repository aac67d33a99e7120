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

from mmf_win.dataset.predictions import COLUMNS, Prediction
from mmf_win.errors import DataError, UnscorableFile

_BOM = "\ufeff"
_INTEGER = re.compile(r"-?[0-9]{1,18}")  # 64 bits, as whoever scores it reads ids
_FLOAT = re.compile(r"[0-9a-z+.-]+", re.IGNORECASE)  # no digits of other scripts, no 1_000 as in Python
_SHOWN = 3


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
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return Submission((), (Problem("it is not a text file in UTF-8"),))
    parser = _Parser(text, [*ids, *left_out])
    predictions = tuple(parser.predictions())
    problems = [*parser.problems(), *(_compare(parser.ids, ids, left_out) if parser.has_rows else ())]
    found = set(parser.ids)
    lacking = sum(id_ not in found for id_ in left_out)
    return Submission(
        predictions,
        tuple(sorted(problems, key=lambda problem: not problem.fatal)),
        missing=sum(id_ not in found for id_ in ids) + lacking,
        missing_left_out=lacking,
    )


def load(path: Path, ids: Sequence[str]) -> list[Prediction]:
    """The predictions in a submission, in the order of ``ids``.

    Raises:
        DataError: it cannot be scored; the message names everything that is wrong.
    """
    submission = check(path, ids)
    if not submission.usable:
        fatal = "; ".join(problem.text for problem in submission.problems if problem.fatal)
        raise UnscorableFile(f"{path}: {fatal}")
    by_id = {row.id: row for row in submission.predictions}
    return [by_id[id_] for id_ in ids]


class _Parser:
    """Reads what can be read, and notes where the rest stands.

    Attributes:
        ids: of every row that has one, whatever else is wrong with the row.
        has_rows: whether its rows can be told apart from its header, and their columns from each other.
    """

    def __init__(self, text: str, known: Sequence[str]) -> None:
        self.ids: list[str] = []
        self._known = frozenset(known)
        self._numbered = all(map(str.isdecimal, known))
        self._text = text.removeprefix(_BOM)
        self._has_bom = text.startswith(_BOM)
        self._header = re.split(r"[\r\n]", self._text, maxsplit=1)[0]
        # A file that is not separated by commas has no comma in its header.
        self._delimiter = "," if "," in self._header else next((d for d in ";\t|" if d in self._header), ",")
        names = self._header.split(self._delimiter)
        quoted = [f'"{name}"' for name in COLUMNS]  # as R writes them
        self.has_rows = len(names) == len(COLUMNS) and all(
            name in either for name, *either in zip(names, COLUMNS, quoted, strict=True)
        )
        self._faults: dict[str, list[int]] = defaultdict(list)
        self._blank = 0
        self._torn: str | None = None

    def predictions(self) -> Iterator[Prediction]:
        """The rows in which nothing is wrong."""
        if not self.has_rows:
            return
        reader = csv.reader(io.StringIO(self._text, newline=""), delimiter=self._delimiter)
        try:
            next(reader)
            for row in reader:
                if not row or row == [""]:
                    self._blank += 1
                elif (prediction := self._row(row, reader.line_num)) is not None:
                    yield prediction
        except csv.Error as error:
            self._torn = f"line {reader.line_num} is not CSV ({error})"

    def problems(self) -> Iterator[Problem]:
        """What was noted."""
        if not self._text.strip():
            yield Problem("it is empty")
            return
        if self._delimiter != ",":
            names = {";": "semicolons", "\t": "tabs", "|": "bars"}
            yield Problem(f"its values are separated by {names[self._delimiter]} instead of commas")
        if not self.has_rows:
            yield Problem(f"its first line must be {','.join(COLUMNS)}, not {self._header[:80]!r}")
        if self._torn:
            yield Problem(self._torn)
        for what, lines in self._faults.items():
            rows = f"{len(lines)} rows" if len(lines) > 1 else "1 row"
            yield Problem(f"{rows} {what} ({_first(lines, 'line')})")
        if self._has_bom:
            yield Problem("it begins with a byte order mark, which not every reader skips", fatal=False)
        if "\r" in self._text:
            yield Problem(r"its lines end with \r\n or \r instead of \n", fatal=False)
        if self._blank:
            yield Problem(f"{self._blank} lines are blank", fatal=False)

    def _row(self, row: list[str], line: int) -> Prediction | None:
        if len(row) != len(COLUMNS):
            self._faults[f"without exactly {len(COLUMNS)} values"].append(line)
            return None
        id_, proba, label = row
        if id_ not in self._known and _INTEGER.fullmatch(id_):
            id_ = str(int(id_))  # the release has 08291 where MMF writes 8291
        faults = []
        if not self._numbered or _INTEGER.fullmatch(id_):
            self.ids.append(id_)
        else:
            faults.append("whose id is not a whole number")
        number = _number(proba)
        if number is None:
            faults.append("whose proba is not a number")
        elif math.isnan(number):
            faults.append("whose proba is NaN")
        elif not 0 <= number <= 1:
            faults.append("whose proba is not within 0 and 1")
        if label not in ("0", "1"):
            faults.append("whose label is neither 0 nor 1")
        for fault in faults:
            self._faults[fault].append(line)
        return None if faults or number is None else Prediction(id_, number, int(label))


def _compare(found: Sequence[str], wanted: Sequence[str], left_out: Sequence[str]) -> Iterator[Problem]:
    counts = Counter(found)
    known = {*wanted, *left_out}
    ids = {
        "missing": [id_ for id_ in wanted if id_ not in counts],
        "missing that the full split has, and that were left out when the dataset was converted": [
            id_ for id_ in left_out if id_ not in counts
        ],
        "not of this split": [id_ for id_ in counts if id_ not in known],
        "there more than once": [id_ for id_, n in counts.items() if n > 1],
    }
    for what, some in ids.items():
        if some:
            are = "id is" if len(some) == 1 else "ids are"
            yield Problem(f"{len(some)} {are} {what} ({_first(some, 'id')})")
    apart = set(left_out)  # their place among the others is not known
    if not any(ids.values()) and [id_ for id_ in found if id_ not in apart] != list(wanted):
        yield Problem(
            "its rows are in another order than the annotations, so only a reader that goes by id scores it",
            fatal=False,
        )


def _number(text: str) -> float | None:
    try:
        return float(text) if _FLOAT.fullmatch(text.strip(" ")) else None
    except ValueError:
        return None


def _first(values: Sequence[object], unit: str) -> str:
    shown = ", ".join(map(str, values[:_SHOWN]))
    more = " …" if len(values) > _SHOWN else ""
    return f"{unit}{'s' if len(values) > 1 else ''} {shown}{more}"
