"""The memes' pictures: small copies for a page, and which of them show the same."""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE = 256
"""The longer side of a small copy, in pixels."""

_CELLS = 16
_SAME = 3  # of 255: what rendering the same picture twice may change
_FLAT = 12.0  # of 255: two plain backgrounds look alike without being the same picture
_BROKEN = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)  # what Pillow raises for bad files

Print = npt.NDArray[np.int16]


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
        with Image.open(path) as image:
            small = image.convert("RGB")
    except _BROKEN:
        return None
    small.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=72)
    coded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return Thumbnail(f"data:image/webp;base64,{coded}", small.width, small.height)


def alike(files: Mapping[int, Path], looked_at: Callable[[], None] = lambda: None) -> dict[int, int]:
    """Which pictures show the same under different captions.

    Two pictures are the same when they have one size and, in the half between a caption at the top and one at
    the bottom, three quarters of a coarse grid agree. Plain backgrounds are left out.

    Args:
        files: the picture of each meme, by its id.
        looked_at: called for each of them.

    Returns:
        For the ids of those that have a like, the smallest id among them.
    """
    by_size: dict[tuple[int, int], list[int]] = defaultdict(list)
    for id_, file in files.items():
        with suppress(*_BROKEN), Image.open(file) as image:  # reads the header alone
            by_size[image.size].append(id_)
    candidates = [ids for ids in by_size.values() if len(ids) > 1]
    for _ in range(len(files) - sum(map(len, candidates))):
        looked_at()
    found: dict[int, int] = {}
    with ThreadPoolExecutor() as pool:  # Pillow decodes without holding the interpreter
        for ids in candidates:
            prints = dict(
                zip(ids, _counted(pool.map(_print, (files[i] for i in ids)), looked_at), strict=True)
            )
            found |= _matches({id_: print_ for id_, print_ in prints.items() if print_ is not None})
    return found


def _counted(prints: Iterable[Print | None], looked_at: Callable[[], None]) -> Iterator[Print | None]:
    for print_ in prints:
        looked_at()
        yield print_


def _print(path: Path) -> Print | None:
    """The brightness of a coarse grid over the middle half; None for a plain or unreadable one."""
    try:
        with Image.open(path) as image:
            band = (0, image.height // 4, image.width, max(image.height * 3 // 4, image.height // 4 + 1))
            _leave_out_below(image, band[3])
            grey = image.convert("L")
    except _BROKEN:
        return None
    cells = np.asarray(grey.resize((_CELLS, _CELLS), Image.Resampling.BOX, band), dtype=np.int16).ravel()
    return cells if cells.std() >= _FLAT else None


def _leave_out_below(image: Any, bottom: int) -> None:
    """Let Pillow decode a PNG's upper rows alone; to decode takes nearly all the time that a page takes."""
    if image.format == "PNG" and not image.info.get("interlace"):
        [(codec, (left, top, right, _), *rest)] = image.tile
        image.tile = [(codec, (left, top, right, bottom), *rest)]


def _matches(prints: Mapping[int, Print]) -> dict[int, int]:
    ids = sorted(prints)
    if not ids:
        return {}
    grid = np.stack([prints[i] for i in ids])
    found: dict[int, int] = {}
    for n, id_ in enumerate(ids):
        if id_ in found:
            continue
        agreeing = (np.abs(grid[n + 1 :] - grid[n]) <= _SAME).mean(axis=1)
        same = [ids[n + 1 + int(other)] for other in np.flatnonzero(agreeing >= 0.75)]
        for other in same:
            found.setdefault(other, id_)
        if same:
            found[id_] = id_
    return found
