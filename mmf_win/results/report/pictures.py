"""The memes' pictures: small copies for a page, and which of them show the same."""

from __future__ import annotations

import base64
import io
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmf_win.console import Progress

SIDE = 256
"""The longer side of a small copy, in pixels."""

_MOST_PIXELS = 16_000_000  # decoded at once: 64 MB in Pillow, and that again in another mode

# A coarse grid is compared, from a quarter of the height down to five eighths: clear of captions at the top
# and the bottom. A perceptual hash of the whole picture finds the same pairs, but takes twice the time.
_COLUMNS, _ROWS = 16, 12  # the rows of 32 over the whole height
_SAME = 0.7  # share of the cells
_NOISE = 3  # of 255: what rendering the same picture twice may change
_FLAT = 12.0  # of 255: two plain backgrounds look alike without being the same picture

Cells = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Thumbnail:
    """A small copy of a picture.

    Attributes:
        uri: ``data:image/webp;base64,…``
        width, height: in pixels.
    """

    uri: str
    width: int
    height: int


def thumbnail(path: Path) -> Thumbnail | None:
    """A copy of at most :data:`SIDE` pixels; None where there is no picture that can be read."""
    try:
        with _opened(path) as image:
            image.load()
            small = image if image.mode == "RGB" else image.convert("RGB")
            small.thumbnail((SIDE, SIDE))
            small.info.clear()  # a colour profile may be larger than the picture
    except Exception:  # for bad files, Pillow raises anything from OSError to AssertionError
        return None
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=72)
    coded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return Thumbnail(f"data:image/webp;base64,{coded}", small.width, small.height)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """A picture that can be decoded: a JPEG is made smaller on the way, where it is large.

    Raises:
        ValueError: it has too many pixels.
    """
    with Image.open(path) as image:
        if image.width * image.height > _MOST_PIXELS:
            image.draft(None, (SIDE, SIDE))
        if image.width * image.height > _MOST_PIXELS:
            raise ValueError(f"{image.width} × {image.height} pixels are too many")
        yield image


class PictureMatcher:
    """Looks for pictures that show the same under different captions, in the background from the start.

    Two pictures are the same when they have one size and agree in seven tenths of a coarse grid, which begins
    below a caption at the top and ends above one at the bottom. Plain backgrounds are left out, and pictures
    too large to be decoded.

    Args:
        files: the picture of each meme, by its id.
    """

    def __init__(self, files: Mapping[int, Path]) -> None:
        by_size: dict[tuple[int, int], list[int]] = defaultdict(list)
        for id_, file in files.items():
            with suppress(Exception), Image.open(file) as image:  # reads the header alone
                by_size[image.size].append(id_)
        # Pillow decodes without holding the interpreter.
        self._pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="mmfw-picture")
        self._looks = [
            {id_: self._pool.submit(_cells, files[id_]) for id_ in ids}
            for ids in by_size.values()
            if len(ids) > 1
        ]

    def __enter__(self) -> PictureMatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def alike(self) -> dict[int, int]:
        """Wait for the comparison; for the ids of pictures that look alike, the smallest id among them."""
        found: dict[int, int] = {}
        with Progress("comparing pictures", sum(map(len, self._looks)), "image") as progress:
            for looks in self._looks:
                seen = {}
                for id_, look in looks.items():
                    if (cells := look.result()) is not None:
                        seen[id_] = cells
                    progress.advance(1)
                found |= _matches(seen)
        return found


def _cells(path: Path) -> Cells | None:
    """The brightness of the grid's cells; None for a plain background, and where it cannot be decoded."""
    try:
        with _opened(path) as image:
            top, bottom = image.height / 4, image.height * (8 + _ROWS) / 32
            _leave_out_below(image, math.ceil(bottom))
            grey = image.crop((0, int(top), image.width, math.ceil(bottom))).convert("L")
    except Exception:
        return None
    box = (0, top - int(top), image.width, bottom - int(top))
    cells = np.asarray(grey.resize((_COLUMNS, _ROWS), Image.Resampling.BOX, box), dtype=np.int16).ravel()
    return cells if cells.std() >= _FLAT else None


def _matches(prints: Mapping[int, Cells]) -> dict[int, int]:
    """For the ids of those that show the same as another, the smallest id of their group.

    Two that agree with a third are of one group.
    """
    if not prints:
        return {}
    ids = np.array(sorted(prints))
    cells = np.stack([prints[id_] for id_ in ids])
    group = np.arange(len(ids))  # each is the place of its first one
    for n in range(len(ids)):
        share = (np.abs(cells[n:] - cells[n]) <= _NOISE).mean(axis=1)
        joined = np.unique(group[n:][share >= _SAME])
        if len(joined) > 1:
            group[np.isin(group, joined)] = joined[0]
    shared = np.bincount(group)[group] > 1
    return dict(zip(ids[shared].tolist(), ids[group[shared]].tolist(), strict=True))


def _leave_out_below(image: Any, bottom: int) -> None:
    """Let Pillow decode a PNG's upper rows alone."""
    if image.format == "PNG" and not image.info.get("interlace"):
        [(codec, (left, top, right, _), *rest)] = image.tile
        image.tile = [(codec, (left, top, right, bottom), *rest)]
