"""The memes' pictures: small copies for a page, and which of them show the same."""

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

_THUMBNAIL_SIDE = 256  # pixels of the longer side of a small copy
_MAX_PIXELS = 16_000_000  # decoded at once: 64 MB in Pillow, and that again in another mode

_HASH_COLUMNS, _HASH_ROWS = 24, 18  # of the steps in a difference hash
_NOISE = 3  # of 255: what rendering the same picture twice may change
_MIN_STEPS = 16  # steps: two plain backgrounds look alike without being the same picture
_MAX_DIFFERENCE = 0.3  # share of the steps


@contextmanager
def _ignore_pillow_warnings() -> Iterator[None]:
    """The page shows which pictures are broken or too large. Filters are of the whole process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


@_ignore_pillow_warnings()
def thumbnail(path: Path) -> dict[str, str | int] | None:
    """The uri, width and height of a copy of at most 256 pixels a side; None of what cannot be decoded."""
    small = _decode_picture(path, "RGB")
    if small is None:
        return None
    small.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
    small.info.clear()  # a colour profile may be larger than the picture
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=72)
    coded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return {"uri": f"data:image/webp;base64,{coded}", "width": small.width, "height": small.height}


def _decode_picture(path: Path, mode: str) -> Image.Image | None:
    """A picture; None where it cannot be decoded, or has too many pixels.

    A JPEG is made smaller on the way, where it is large.
    """
    # For bad files, Pillow raises anything from OSError to AssertionError.
    with suppress(Exception), Image.open(path) as image:
        if image.width * image.height > _MAX_PIXELS:
            image.draft(None, (_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
        if image.width * image.height <= _MAX_PIXELS:
            return to_rgb(image).convert(mode)
    return None


@_ignore_pillow_warnings()
def group_similar_pictures(files: Mapping[int, Path]) -> dict[int, int]:
    """For the ids of pictures that show the same under different captions, the smallest id among them.

    Two pictures are the same when they have one size, and their difference hashes have seven tenths of their
    steps in common; two that are the same as a third are of one group. Plain backgrounds are left out, and
    pictures too large to be decoded. ``files`` has the picture of each meme, by its id.
    """
    by_size: dict[tuple[int, int], list[int]] = defaultdict(list)
    for id_, file in files.items():
        with suppress(Exception), Image.open(file) as image:  # reads the header alone
            by_size[image.size].append(id_)
    ids = [id_ for same in by_size.values() if len(same) > 1 for id_ in same]
    hashes: dict[int, int] = {}
    # Pillow decodes without holding the interpreter.
    with (
        ThreadPoolExecutor(available_cpus()) as pool,
        Progress("comparing pictures", len(ids), "image") as bar,
    ):
        for id_, steps in zip(ids, pool.map(_difference_hash, (files[id_] for id_ in ids)), strict=True):
            bar.advance(1)
            if steps.bit_count() >= _MIN_STEPS:
                hashes[id_] = steps
    group = {id_: id_ for id_ in hashes}
    for same in by_size.values():
        for one, other in combinations(hashes.keys() & same, 2):
            apart, either = hashes[one] ^ hashes[other], hashes[one] | hashes[other]
            if apart.bit_count() <= _MAX_DIFFERENCE * either.bit_count() and group[one] != group[other]:
                joined = {group[one], group[other]}
                group |= {id_: min(joined) for id_, of in group.items() if of in joined}
    shared = Counter(group.values())
    return {id_: of for id_, of in group.items() if shared[of] > 1}


def _difference_hash(path: Path) -> int:
    """Where a picture gets brighter from one cell of a grid to the next, and where darker, a bit for each.

    The grid reaches from a quarter of the height down to five eighths: clear of captions at the top and the
    bottom. 0 stands for a picture that cannot be decoded.
    """
    grey = _decode_picture(path, "L")
    if grey is None:
        return 0
    band = (0, grey.height / 4, grey.width, grey.height * 5 / 8)
    cells = np.asarray(
        grey.resize((_HASH_COLUMNS + 1, _HASH_ROWS), Image.Resampling.BOX, band), dtype=np.int16
    )
    steps = np.diff(cells)
    return int.from_bytes(np.packbits([steps > _NOISE, steps < -_NOISE]).tobytes(), "big")
