"""How many rows of a split were used, and how many the full split has.

Public copies of the dataset lack images, so most people convert with ``--allow-missing``, and score parts of
splits. Whatever shows a score says so, in the words of :class:`Coverage`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from mmf_win.dataset.annotations import AnnotationFile, AnnotationRow
from mmf_win.errors import DataError
from mmf_win.integrity.manifest import Manifest, parse_notes
from mmf_win.paths import DatasetPaths
from mmf_win.records import convert_to


@dataclass(frozen=True)
class SplitSummary:
    """What a split holds.

    Attributes:
        rows: memes whose image is there.
        hateful, benign: how many of them have label 1 and 0; None when the split has no labels.
        missing: rows without their image, which are left out.
        missing_ids: what these rows are called in prediction files.
        own: it was converted from a table of the user's own.
    """

    rows: int
    hateful: int | None
    benign: int | None
    missing: int
    missing_ids: list[str] = field(default_factory=list)
    own: bool = False

    @classmethod
    def from_rows(cls, rows: Sequence[AnnotationRow], images: Collection[str], *, own: bool) -> SplitSummary:
        """Count the rows whose image is there, and name the others."""
        missing = [row for row in rows if row.img not in images]
        labels = [row.label for row in rows if row.img in images]
        labelled = any(label is not None for label in labels)
        return cls(
            rows=len(labels),
            hateful=labels.count(1) if labelled else None,
            benign=labels.count(0) if labelled else None,
            missing=len(missing),
            missing_ids=[row.display_id for row in missing],
            own=own,
        )


@dataclass(frozen=True)
class Coverage:
    """The part of a split that was trained on, validated on or predicted.

    The ``split`` is its annotation file's stem; ``rows`` and ``full_rows``, which it has in full, are None
    where nothing tells them.
    """

    split: str
    rows: int | None = None
    full_rows: int | None = None

    @classmethod
    def from_json(cls, value: object) -> Coverage | None:
        """From a JSON object that has these three keys, among others; None from anything else."""
        with suppress(ValueError):
            on = convert_to(value, cls)
            return None if on.rows is None else on
        return None

    @property
    def is_partial(self) -> bool:
        """Whether rows are known to be left out."""
        return self.rows is not None and self.full_rows is not None and self.rows < self.full_rows

    @property
    def amount(self) -> str:
        """``1,593 of 2,000``, or ``2,000`` where no rows are known to be left out."""
        return f"{self.rows:,} of {self.full_rows:,}" if self.is_partial else f"{self.rows:,}"

    @property
    def split_label(self) -> str:
        """``1,593 of 2,000 rows of test_unseen``; ``test_unseen`` where no rows are known to be left out."""
        return str(self) if self.is_partial else self.split

    def __str__(self) -> str:
        return self.split if self.rows is None else f"{self.amount} rows of {self.split}"


def load_split_summary(paths: DatasetPaths, file: AnnotationFile) -> SplitSummary | None:
    """Return what the conversion found in a split; None if none wrote its file, or it was changed since then.

    Raises DamagedManifest if the conversion's record of the split lacks a field.
    """
    summary = None
    with suppress(DataError, OSError, KeyError, TypeError, AttributeError):
        manifest = Manifest.load(paths.root)
        if manifest and manifest.files[f"annotations/{file.path.name}"].sha256 == file.sha256:
            summary = manifest.result["splits"][file.path.stem]
    return None if summary is None else parse_notes(SplitSummary, summary, paths.root)


def is_user_dataset(paths: DatasetPaths) -> bool:
    """Whether the dataset was converted from tables of the user's own, whatever its splits are called."""
    with suppress(DataError, KeyError, TypeError, AttributeError):
        manifest = Manifest.load(paths.root)
        return manifest is not None and any(s.get("own") for s in manifest.result["splits"].values())
    return False


def load_coverage(paths: DatasetPaths, file: AnnotationFile) -> Coverage:
    """Return how much of a split its annotation file holds."""
    summary = load_split_summary(paths, file)
    full = None if summary is None else summary.rows + summary.missing
    return Coverage(file.path.stem, len(file.lines), full)
