"""Pictures of memes: thumbnails for a page, and groups of similar pictures."""

from __future__ import annotations

import base64
import io
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path

import numpy as np
from PIL import Image

from mmf_win.console import Progress
from mmf_win.images import to_rgb
from mmf_win.machine import available_cpus

_THUMBNAIL_SIDE = 256  # pixels of the longer side
_MAX_PIXELS = 16_000_000  # 64 MB decoded by Pillow, plus the same for a conversion to another mode

_HASH_COLUMNS, _HASH_ROWS = 24, 18  # size of the grid of a difference hash
_NOISE = 3  # of 255; two renderings of the same picture differ by this much
_MIN_STEPS = 16  # below it, a picture is a plain background, which is similar to any other
_MAX_DIFFERENCE = 0.3  # share of the steps


@contextmanager
def _ignore_pillow_warnings() -> Iterator[None]:
    """Suppress Pillow's warnings while the block runs.

    The page itself shows which pictures are damaged or too large. Warning filters apply to the whole process.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


@_ignore_pillow_warnings()
def make_thumbnail(path: Path) -> dict[str, str | int] | None:
    """Return the data URI, width and height of a thumbnail, or ``None`` if the picture cannot be decoded.

    The longer side has at most 256 pixels.
    """
    copy = _decode_picture(path, "RGB")
    if copy is None:
        return None
    copy.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
    copy.info.clear()  # a colour profile can be larger than the picture
    buffer = io.BytesIO()
    copy.save(buffer, "WEBP", quality=72)
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return {"uri": f"data:image/webp;base64,{encoded}", "width": copy.width, "height": copy.height}


def _decode_picture(path: Path, mode: str) -> Image.Image | None:
    """Return a picture in a mode, or ``None`` if it cannot be decoded or has too many pixels.

    A large JPEG is scaled down while it is decoded.
    """
    # For damaged files, Pillow raises anything from OSError to AssertionError.
    with suppress(Exception), Image.open(path) as image:
        if image.width * image.height > _MAX_PIXELS:
            image.draft(None, (_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
        if image.width * image.height <= _MAX_PIXELS:
            return to_rgb(image).convert(mode)
    return None


@_ignore_pillow_warnings()
def group_similar_pictures(files: Mapping[int, Path]) -> dict[int, int]:
    """Map the ID of each picture with near-duplicates to the smallest ID of its group.

    Two pictures are similar if they have the same size and their difference hashes share at least 70 % of
    their steps; the relation is transitive. Plain backgrounds are ignored, and so are pictures that are
    damaged or too large.

    Args:
        files: Picture of each meme by ID.

    Returns:
        Group IDs by meme ID, without pictures that are alone in their group.
    """
    by_size: dict[tuple[int, int], list[int]] = defaultdict(list)
    for id_, file in files.items():
        with suppress(Exception), Image.open(file) as image:  # reads only the header
            by_size[image.size].append(id_)
    ids = [id_ for same_size in by_size.values() if len(same_size) > 1 for id_ in same_size]
    hashes: dict[int, int] = {}
    # Pillow releases the GIL while it decodes.
    with ThreadPoolExecutor(available_cpus()) as pool, Progress("comparing pictures", len(ids), "image") as bar:
        for id_, steps in zip(ids, pool.map(_difference_hash, (files[id_] for id_ in ids)), strict=True):
            bar.advance(1)
            if steps.bit_count() >= _MIN_STEPS:
                hashes[id_] = steps
    group_of = {id_: id_ for id_ in hashes}
    for same_size in by_size.values():
        for first, second in combinations(hashes.keys() & same_size, 2):
            difference, union = hashes[first] ^ hashes[second], hashes[first] | hashes[second]
            if difference.bit_count() <= _MAX_DIFFERENCE * union.bit_count() and group_of[first] != group_of[second]:
                merged = {group_of[first], group_of[second]}
                group_of |= {id_: min(merged) for id_, group in group_of.items() if group in merged}
    group_sizes = Counter(group_of.values())
    return {id_: group for id_, group in group_of.items() if group_sizes[group] > 1}


def _difference_hash(path: Path) -> int:
    """Return a bit mask of the brightness steps between the cells of a grid; 0 for an undecodable picture.

    The first half of the bits marks steps to a brighter cell and the second half steps to a darker one. The
    grid covers the height from 1/4 to 5/8, away from captions at the top and bottom.
    """
    grey = _decode_picture(path, "L")
    if grey is None:
        return 0
    band = (0, grey.height / 4, grey.width, grey.height * 5 / 8)
    cells = np.asarray(grey.resize((_HASH_COLUMNS + 1, _HASH_ROWS), Image.Resampling.BOX, band), dtype=np.int16)
    steps = np.diff(cells)
    return int.from_bytes(np.packbits([steps > _NOISE, steps < -_NOISE]).tobytes(), "big")
