"""How many rows of a split were used, and how many the full split has.

Public copies of the dataset lack images, so most people convert with ``--allow-missing``, and score parts of
splits. Whatever shows a score says so, in the words of :class:`Coverage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmf_win.crc import crc32
from mmf_win.dataset.annotations import count_rows
from mmf_win.dataset.check import SplitSummary
from mmf_win.dataset.record import Record
from mmf_win.integrity import Checksum
from mmf_win.paths import DatasetPaths


@dataclass(frozen=True)
class Coverage:
    """The part of a split that was trained on, validated on or predicted.

    Attributes:
        split: the annotation file's stem.
        rows: how many rows were used.
        full_rows: how many the full split has; None where that is not known.
    """

    split: str
    rows: int
    full_rows: int | None = None

    @classmethod
    def read(cls, value: object) -> Coverage | None:
        """From a JSON object that has these three keys, among others; None from anything else."""
        if not isinstance(value, Mapping):
            return None
        split, rows, full = (value.get(key) for key in ("split", "rows", "full_rows"))
        if not isinstance(split, str) or not isinstance(rows, int):
            return None
        return cls(split, rows, full if isinstance(full, int) else None)

    @property
    def is_partial(self) -> bool:
        """Whether rows are known to be left out."""
        return self.full_rows is not None and self.rows < self.full_rows

    @property
    def amount(self) -> str:
        """``1,593 of 2,000``, or ``2,000`` where no rows are known to be left out."""
        return f"{self.rows:,} of {self.full_rows:,}" if self.is_partial else f"{self.rows:,}"

    @property
    def brief(self) -> str:
        """``1,593 of 2,000 rows of test_unseen``; ``test_unseen`` where no rows are known to be left out."""
        return str(self) if self.is_partial else self.split

    def __str__(self) -> str:
        return f"{self.amount} rows of {self.split}"


def converted(paths: DatasetPaths, split: str) -> SplitSummary | None:
    """What the conversion remembers of a split.

    Args:
        paths: where the dataset is.
        split: the annotation file's stem.

    Returns:
        None where no conversion wrote the annotation file, or it was changed since then.
    """
    record, file = Record.load(paths.record), paths.split(split)
    try:
        content = file.read_bytes()
    except OSError:
        return None
    written = record and record.files.get(f"annotations/{file.name}")
    if record is None or written not in (Checksum(len(content), crc32(content)), Checksum(len(content))):
        return None
    try:
        return SplitSummary.from_json(record.result["splits"][split])
    except (KeyError, TypeError, AttributeError):
        return None


def is_own_set(paths: DatasetPaths) -> bool:
    """Whether the dataset was converted from tables of the user's own, whatever its splits are called."""
    record = Record.load(paths.record)
    try:
        return record is not None and any(summary.get("own") for summary in record.result["splits"].values())
    except (KeyError, AttributeError):
        return False


def coverage(paths: DatasetPaths, split: str) -> Coverage:
    """How much of a split its annotation file holds.

    Raises:
        DatasetError: the file cannot be read.
    """
    summary = converted(paths, split)
    full = None if summary is None else summary.rows + summary.missing
    return Coverage(split, count_rows(paths.split(split)), full)
