"""Published scores of the paper, and the splits to which they belong.

``published`` of a preset or run contains the scores for ``val`` and ``test``. These were released as
dev_seen and test_seen, and as dev and test in the challenge's first phase. The paper has no scores for other
splits, so none may be shown next to a score on one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mmf_win.dataset.annotations import list_splits
from mmf_win.paths import DatasetPaths

PAPER = "arXiv:2005.04790"
#: The paper's name of a split → its name in the release.
PAPER_SPLITS = {"val": "dev_seen", "test": "test_seen"}

_PAPER_ROW_COUNTS = {"val": 500, "test": 1000}
_PAPER_NAMES = {"dev_seen": "val", "dev": "val", "test_seen": "test", "test": "test"}


@dataclass(frozen=True)
class PublishedScore:
    """Score that the paper reports.

    Attributes:
        value: 0 to 1.
        standard_deviation: Over seeds; None if the paper has none.
        split: Annotation file of the split.
        rows: Number of memes in the paper's split; scores on another number are not comparable.
    """

    value: float
    standard_deviation: float | None
    split: str
    rows: int


def find_published_score(published_scores: Mapping[str, Any], split: str, metric: str) -> PublishedScore | None:
    """Return the paper's score for a split, or None if it has none.

    Args:
        published_scores: ``published`` of a preset, in percent; invalid values are ignored.
        split: Stem of the annotation file.
        metric: ``auroc`` or ``accuracy``.

    Returns:
        The score, as a fraction.
    """
    with suppress(KeyError, TypeError, ValueError):
        name = _PAPER_NAMES[split]
        number = published_scores[name][metric]
        value, deviation = number if isinstance(number, list) else (number, 0)
        if 0 <= value <= 100 and 0 <= deviation <= 100:
            return PublishedScore(value / 100, deviation / 100 if deviation else None, split, _PAPER_ROW_COUNTS[name])
    return None


def find_paper_splits(paths: DatasetPaths) -> dict[str, str]:
    """Return the paper's name → stem of the annotation file, for splits on disk."""
    existing = list_splits(paths)
    paper_splits: dict[str, str] = {}
    for split, name in _PAPER_NAMES.items():
        if split in existing:
            paper_splits.setdefault(name, split)
    return paper_splits


def missing_score_reason(split: str) -> str:
    """Return why no published score can be shown for a split."""
    if split in _PAPER_NAMES:
        return "The paper reports nothing for this."
    return f"The paper reports {' and '.join(PAPER_SPLITS.values())}, not {split}."
