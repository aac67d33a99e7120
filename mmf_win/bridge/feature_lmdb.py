"""Writes region features as MMF reads them: an LMDB with one pickled dictionary an image.

The format is that of MMF's ``tools/scripts/features/lmdb_conversion.py``, read back by its
``LMDBFeatureReader``: under ``keys`` the pickled list of all keys, and under each key, which is the image's
file name without its suffix, ``feature_path``, ``features`` (regions × 2048, float32), ``bbox`` (regions × 4,
in pixels), ``num_boxes``, ``objects``, ``cls_prob`` (regions × 1601), ``image_width`` and ``image_height``.
"""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import lmdb

Record: TypeAlias = tuple[bytes, bytes]
"""A key, and the pickled dictionary."""

_AT_ONCE = 64 << 20


def least_map(count: int, total: int) -> int:
    """The size of the map for so many records that take so many bytes.

    On Windows the file is as large as the map from the start, so the map is no larger than need be: values
    are rounded up to pages, and the rest is for keys and bookkeeping.
    """
    return total + count * 2 * mmap.PAGESIZE + (1 << 20)


def write(folder: Path, records: Iterable[Record], size: int, keys: Sequence[bytes] | None = None) -> None:
    """Write an LMDB; of the records no more than a few are in memory at a time.

    Args:
        folder: made by this; must not exist.
        records: what to write.
        size: of the map, as :func:`least_map` has it. It grows where that is too small.
        keys: all of them in the order in which they are listed; that of the records where it is not given.

    Raises:
        lmdb.Error: the disk is full, for example.
    """
    folder.mkdir(parents=True)
    written: list[bytes] = []
    # create=True would make the folder, on Windows under a name in the ANSI code page.
    with lmdb.open(str(folder), map_size=size, create=False, lock=False, sync=False) as environment:
        for batch in _batches(records):
            _put(environment, batch)
            written += [key for key, _ in batch]
        _put(environment, [(b"keys", pickle.dumps(written if keys is None else list(keys)))])
        environment.sync(True)


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    length = 0
    for record in records:
        batch.append(record)
        length += len(record[1])
        if length >= _AT_ONCE:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def _put(environment: lmdb.Environment, batch: Sequence[Record]) -> None:
    while True:
        try:
            with environment.begin(write=True) as transaction:
                for key, record in batch:
                    transaction.put(key, record)
            return
        except lmdb.MapFullError:
            needed = least_map(len(batch), sum(len(record) for _, record in batch))
            environment.set_mapsize(environment.info()["map_size"] + needed)
