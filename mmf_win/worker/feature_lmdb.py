"""Writes region features as MMF reads them: an LMDB with one pickled dictionary an image.

The format is that of MMF's ``tools/scripts/features/lmdb_conversion.py``, read back by its
``LMDBFeatureReader``: under ``keys`` the pickled list of all keys, and under each key, which is the image's
file name without its suffix, ``feature_path``, ``features`` (regions × 2048, float32), ``bbox`` (regions × 4,
in pixels), ``num_boxes``, ``objects``, ``cls_prob`` (regions × 1601), ``image_width`` and ``image_height``.
"""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Iterable
from pathlib import Path

import lmdb


def least_map(count: int, total: int) -> int:
    """The size of the map for so many records that take so many bytes.

    On Windows the file is as large as the map from the start, so the map is no larger than need be: values
    are rounded up to pages, and the rest is for keys and bookkeeping.
    """
    return total + count * 2 * mmap.PAGESIZE + (1 << 20)


def write(folder: Path, records: Iterable[tuple[str, bytes]], size: int) -> list[str]:
    """Write an LMDB, and return its keys; only one record is in memory at a time.

    Args:
        folder: made by this; must not exist.
        records: keys, and pickled dictionaries.
        size: of the map, as :func:`least_map` has it.

    Raises:
        lmdb.Error: the disk is full, for example.
    """
    folder.mkdir(parents=True)
    keys: list[str] = []
    # create=True would make the folder, on Windows under a name in the ANSI code page.
    with lmdb.open(str(folder), map_size=size, create=False, lock=False, sync=False) as environment:
        for key, record in records:
            with environment.begin(write=True) as transaction:
                transaction.put(key.encode(), record)
            keys.append(key)
        with environment.begin(write=True) as transaction:
            transaction.put(b"keys", pickle.dumps([key.encode() for key in keys]))
        environment.sync(True)
    return keys
