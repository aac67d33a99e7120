"""Whether annotations and images belong together."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from mmf_win.dataset.annotations import Row
from mmf_win.errors import IncompleteDataset

_NAMES_SHOWN = 3


@dataclass(frozen=True)
class SplitSummary:
    """What a split holds.

    Attributes:
        rows: memes whose image is there.
        hateful: rows with label 1; None when the split has no labels.
        benign: rows with label 0; None when the split has no labels.
        missing: rows without their image, which are left out.
        own: it was converted from a table of the user's own.
        missing_ids: what these rows are called in prediction files; none in a record of an earlier mmfw.
    """

    rows: int
    hateful: int | None
    benign: int | None
    missing: int
    missing_ids: tuple[str, ...] = ()
    own: bool = False

    @classmethod
    def of(cls, rows: Sequence[Row], images: Collection[str], *, own: bool) -> SplitSummary:
        """Count the rows whose image is there, and name the others."""
        missing = [row for row in rows if row.img not in images]
        labels = [row.label for row in rows if row.img in images]
        labelled = any(label is not None for label in labels)
        return cls(
            rows=len(labels),
            hateful=labels.count(1) if labelled else None,
            benign=labels.count(0) if labelled else None,
            missing=len(missing),
            missing_ids=tuple(row.shown_id for row in missing),
            own=own,
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SplitSummary:
        """From the plain values of a record.

        Raises:
            TypeError: they are others than a record has.
        """
        return cls(**{**value, "missing_ids": tuple(value.get("missing_ids", ()))})


def shared_ids(splits: Mapping[str, Sequence[Row]], images: Collection[str]) -> dict[str, int]:
    """How many memes, by id and image, two splits have in common: ``{"dev_seen & dev_unseen": 400}``."""
    ids = {split: {(row.id, row.img) for row in rows if row.img in images} for split, rows in splits.items()}
    counts = {f"{a} & {b}": len(ids[a] & ids[b]) for a, b in combinations(ids, 2)}
    return {pair: count for pair, count in counts.items() if count}


def require_images(source: Path, splits: Mapping[str, Sequence[Row]], images: Collection[str]) -> None:
    """Refuse annotations whose images are not there.

    Raises:
        DatasetError: it says how many are missing of each split, and names a few.
    """
    missing = {split: [r.img for r in rows if r.img not in images] for split, rows in splits.items()}
    counts = [f"{split} {len(imgs)} of {len(splits[split])}" for split, imgs in missing.items() if imgs]
    if counts:
        names = sorted({img for imgs in missing.values() for img in imgs})
        shown = ", ".join(names[:_NAMES_SHOWN]) + (" …" if len(names) > _NAMES_SHOWN else "")
        raise IncompleteDataset(
            f"{source}: images are missing: {', '.join(counts)} ({shown})",
            hint=other_name(names, images) or "get a complete copy",
        )


def other_name(missing: Iterable[str], images: Iterable[str]) -> str | None:
    """What to write instead of the name of an image that is missing, where only its folder is named wrongly.

    Args:
        missing: names as annotations have them: ``img\\\\01235.png``, ``01235.png``, ``D:/img/01235.png``.
        images: the images that are there: ``img/01235.png``.
    """
    there = {image.rpartition("/")[2]: image for image in images}
    for name in missing:
        image = there.get(name.replace("\\", "/").rpartition("/")[2])
        if image is not None and image != name:
            return f'this image is there: write "{image}" where the annotations have {json.dumps(name)}'
    return None
