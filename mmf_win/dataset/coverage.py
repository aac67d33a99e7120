"""Coverage of a split: number of rows that were used, and number of rows in the full split.

Public copies of the dataset lack images, so many users convert with ``--allow-missing`` and score parts of
splits. Everything that shows a score states this with :class:`Coverage`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from mmf_win.dataset.annotations import AnnotationFile, AnnotationRow
from mmf_win.errors import DataError
from mmf_win.integrity.manifest import Manifest, parse_notes
from mmf_win.paths import DatasetPaths
from mmf_win.records import convert_to, stored_as


@dataclass(frozen=True)
class SplitSummary:
    """Contents of a split.

    Attributes:
        rows: Number of memes with an image.
        hateful, benign: Number of those with label 1 and 0; None if the split has no labels.
        missing: Number of excluded rows, whose image is missing.
        missing_ids: Display ids of the excluded rows.
        is_user_data: The split was converted from a user's table.
    """

    rows: int
    hateful: int | None
    benign: int | None
    missing: int
    missing_ids: list[str] = field(default_factory=list)
    is_user_data: bool = field(default=False, metadata=stored_as("own"))

    @classmethod
    def from_rows(cls, rows: Sequence[AnnotationRow], images: Collection[str], *, is_user_data: bool) -> SplitSummary:
        """Count the rows whose image exists, and list the others."""
        missing = [row for row in rows if row.img not in images]
        labels = [row.label for row in rows if row.img in images]
        labelled = any(label is not None for label in labels)
        return cls(
            rows=len(labels),
            hateful=labels.count(1) if labelled else None,
            benign=labels.count(0) if labelled else None,
            missing=len(missing),
            missing_ids=[row.display_id for row in missing],
            is_user_data=is_user_data,
        )


@dataclass(frozen=True)
class Coverage:
    """Rows of a split that were used for training, validation or prediction.

    Attributes:
        split: Stem of the annotation file.
        rows: Number of used rows; None if unknown.
        full_rows: Number of rows of the full split; None if unknown.
    """

    split: str
    rows: int | None = None
    full_rows: int | None = None

    @classmethod
    def from_json(cls, value: object) -> Coverage | None:
        """Create a coverage from a JSON object with these keys, or return None for any other value."""
        with suppress(ValueError):
            coverage = convert_to(value, cls)
            return None if coverage.rows is None else coverage
        return None

    @property
    def is_partial(self) -> bool:
        """True if rows are known to be excluded."""
        return self.rows is not None and self.full_rows is not None and self.rows < self.full_rows

    @property
    def amount(self) -> str:
        """Number of rows: ``1,593 of 2,000``, or ``2,000`` if no rows are known to be excluded."""
        return f"{self.rows:,} of {self.full_rows:,}" if self.is_partial else f"{self.rows:,}"

    @property
    def split_label(self) -> str:
        """Name in headings: ``1,593 of 2,000 rows of test_unseen``, or ``test_unseen`` if not partial."""
        return str(self) if self.is_partial else self.split

    def __str__(self) -> str:
        return self.split if self.rows is None else f"{self.amount} rows of {self.split}"


def load_split_summary(paths: DatasetPaths, file: AnnotationFile) -> SplitSummary | None:
    """Load the summary of a split from the conversion's manifest.

    Returns:
        The summary, or None if the file was not converted or has changed since.

    Raises:
        DamagedManifestError: The stored summary lacks a field.
    """
    summary = None
    with suppress(DataError, OSError, KeyError, TypeError, AttributeError):
        manifest = Manifest.load(paths.root)
        if manifest and manifest.files[f"annotations/{file.path.name}"].sha256 == file.sha256:
            summary = manifest.result["splits"][file.path.stem]
    return None if summary is None else parse_notes(SplitSummary, summary, paths.root)


def is_user_dataset(paths: DatasetPaths) -> bool:
    """Return whether the dataset was converted from tables of the user, whatever its splits are called."""
    with suppress(DataError, KeyError, TypeError, AttributeError):
        manifest = Manifest.load(paths.root)
        return manifest is not None and any(s.get("own") for s in manifest.result["splits"].values())
    return False


def load_coverage(paths: DatasetPaths, file: AnnotationFile) -> Coverage:
    """Return the number of rows in an annotation file and in the full split."""
    summary = load_split_summary(paths, file)
    full_rows = None if summary is None else summary.rows + summary.missing
    return Coverage(file.path.stem, len(file.lines), full_rows)
