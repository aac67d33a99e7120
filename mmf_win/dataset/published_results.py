"""Which of the paper's numbers belong to a split.

A preset's and a run's ``published`` holds them as the paper does, for ``val`` and ``test``. These two were
released as dev_seen and test_seen, and as dev and test in the challenge's first phase. The paper has no
numbers for any other split, so no published number may stand beside a score on one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mmf_win.dataset.annotations import splits_on_disk
from mmf_win.paths import DatasetPaths

PAPER = "arXiv:2005.04790"
#: What the paper calls a split → what it is called in the release.
PAPER_SPLITS = {"val": "dev_seen", "test": "test_seen"}

_PAPER_ROW_COUNTS = {"val": 500, "test": 1000}
_PAPER_NAMES = {"dev_seen": "val", "dev": "val", "test_seen": "test", "test": "test"}


@dataclass(frozen=True)
class PublishedScore:
    """A number that the paper reports.

    Attributes:
        value: 0 to 1.
        spread: the standard deviation over seeds; None where the paper has none.
        split: the annotation file that it was measured on, as it is called here.
        rows: how many memes the paper measured it on; a score on another number is not comparable.
    """

    value: float
    standard_deviation: float | None
    split: str
    rows: int


def find_published_score(
    published_scores: Mapping[str, Any], split: str, metric: str
) -> PublishedScore | None:
    """What the paper reports of a preset for a split, as ``auroc`` or ``accuracy``.

    ``numbers`` is a preset's ``published``, in percent; what cannot be one is as if it were not there.
    """
    with suppress(KeyError, TypeError, ValueError):
        name = _PAPER_NAMES[split]
        number = published_scores[name][metric]
        value, spread = number if isinstance(number, list) else (number, 0)
        if 0 <= value <= 100 and 0 <= spread <= 100:
            return PublishedScore(
                value / 100, spread / 100 if spread else None, split, _PAPER_ROW_COUNTS[name]
            )
    return None


def find_paper_splits(paths: DatasetPaths) -> dict[str, str]:
    """What the paper calls a split → the annotation file's stem, for those that lie on disk."""
    there = splits_on_disk(paths)
    found: dict[str, str] = {}
    for split, name in _PAPER_NAMES.items():
        if split in there:
            found.setdefault(name, split)
    return found


def missing_score_reason(split: str) -> str:
    """Why no published number stands beside a score on a split."""
    if split in _PAPER_NAMES:
        return "The paper reports nothing for this."
    return f"The paper reports {' and '.join(PAPER_SPLITS.values())}, not {split}."
