"""Whether the images that annotations name are there."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from mmf_win.dataset.annotations import Row
from mmf_win.errors import MissingImages

_NAMES_SHOWN = 3


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
        raise MissingImages(
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
