"""Builds an LMDB of region features in a process of its own, for ``mmfw features add``.

Run as ``python -m mmf_win.bridge.build_features JOB OUTPUT``. ``JOB`` is JSON: ``folders`` with ``.npy``
files, ``base``, an LMDB to extend or null, ``target``, the LMDB to write, and ``force``. The file ``OUTPUT``
is JSON, too: what :class:`Built` says, or under ``error`` what is wrong.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from mmf_win.bridge import feature_keys, feature_lmdb
from mmf_win.bridge.npy_pairs import Found, Pair, find_pairs, read_record, regions_of, unpickled
from mmf_win.console import Progress
from mmf_win.errors import DatasetError, Interrupted, MmfwError, ResourceError
from mmf_win.files import write_json
from mmf_win.unpacking.staging import require_space

_SHOWN = 3


@dataclass
class Built:
    """What was done.

    Attributes:
        keys: of the LMDB now.
        given: those of the folders.
        added: how many records are new.
        replaced: how many replace one with other content.
        same: how many were there already.
        without_info: keys of the new ones that have no ``_info.npy``.
        numbers: how many numbers describe a region.
        regions: the smallest and the largest number of regions of the new ones, and of one that was there.
        notes: what was left aside.
    """

    keys: list[str]
    given: list[str]
    added: int
    replaced: int
    same: int
    without_info: list[str]
    numbers: int
    regions: tuple[int, int]
    notes: list[str]


def main(job: str, output: Path) -> int:
    """Do it, write what was done, and return the exit code."""
    asked = json.loads(job)
    base = None if asked["base"] is None else Path(asked["base"])
    try:
        found = find_pairs([Path(folder) for folder in asked["folders"]], force=asked["force"])
        built: dict[str, Any] = asdict(build(found, base, Path(asked["target"]), force=asked["force"]))
    except MmfwError as error:
        built = {"error": str(error), "hint": error.hint, "code": error.exit_code}
    except OSError as error:
        built = {"error": f"{error.filename}: {error.strerror}", "hint": None, "code": DatasetError.exit_code}
    except KeyboardInterrupt:
        return Interrupted.exit_code
    write_json(output, built)
    return 0


def build(found: Found, base: Path | None, target: Path, *, force: bool) -> Built:
    """Write ``target`` with the records of ``base`` and of ``found``; not when all of them are in ``base``.

    Raises:
        DatasetError: a file cannot be used, or ``base`` is damaged or has another record under a key.
        ResourceError: there is not enough room; nothing was written.
    """
    with ExitStack() as stack:
        old = _Base(base, stack) if base else None
        known = set(old.keys) if old else set()
        there = [pair for key, pair in found.pairs.items() if key in known]
        differing = _differing(there, old) if old and there else []
        if differing and not force:
            keys = [pair.key for pair in differing]
            shown = ", ".join(keys[:_SHOWN]) + (" …" if len(keys) > _SHOWN else "")
            raise DatasetError(
                f"{base}: it has other features already of {len(keys)} of these images: {shown}",
                hint="--force replaces them; --output LMDB builds another one",
            )
        new = [pair for key, pair in found.pairs.items() if key not in known]
        writer = _Writer([*differing, *new], old, target)
        if writer.pairs:
            writer.write()
        return Built(
            writer.keys,
            list(found.pairs),
            added=len(new),
            replaced=len(differing),
            same=len(there) - len(differing),
            without_info=[pair.key for pair in writer.pairs if pair.info is None],
            numbers=writer.numbers or 0,
            regions=(min(writer.regions, default=0), max(writer.regions, default=0)),
            notes=found.notes,
        )


class _Base:
    """The LMDB that is extended.

    Args:
        folder: the LMDB.
        stack: closes it.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        try:
            self.keys = feature_keys.read(folder, walk=False)
            options = {"readonly": True, "lock": False, "readahead": False}
            environment = stack.enter_context(lmdb.open(str(folder), **options))
        except (lmdb.Error, ValueError) as error:
            raise DatasetError(f"{folder}: it is damaged: {error}") from error
        self._transaction: Any = stack.enter_context(environment.begin(buffers=True))
        self.size = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]

    def record(self, key: str) -> bytes:
        """A record as it is."""
        record: memoryview = self._transaction.get(key.encode())
        return bytes(record)

    def shape(self, key: str) -> tuple[int, int]:
        """How many regions a record has, and how many numbers describe one."""
        regions, numbers = regions_of(unpickled(self.record(key), f"{self.folder}: {key}")).shape
        return regions, numbers


def _differing(pairs: Sequence[Pair], old: _Base) -> list[Pair]:
    """Those whose record in the LMDB is another one."""
    differing = []
    with Progress("Comparing with what is there", len(pairs), "image") as bar:
        for pair in pairs:
            record, before = read_record(pair), old.record(pair.key)
            shown = f"{old.folder}: {pair.key}"
            if pickle.dumps(record) != before and not _equal(record, unpickled(before, shown)):
                differing.append(pair)
            bar.advance(1)
    return differing


def _equal(one: Any, other: Any) -> bool:
    """Whether two records are the same, whichever numpy pickled them."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.dtype.hasobject or other.dtype.hasobject:
            return one.shape == other.shape and _equal(one.tolist(), other.tolist())
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)


class _Writer:
    """Writes an LMDB from files and from another LMDB.

    Attributes:
        pairs: the files.
        keys: of the LMDB that it writes.
        numbers: how many numbers describe a region.
        regions: the numbers of regions that were seen.
    """

    def __init__(self, pairs: Sequence[Pair], old: _Base | None, target: Path) -> None:
        self.pairs, self._old, self._target = pairs, old, target
        replaced = {pair.key for pair in pairs}
        self._kept = [key for key in old.keys if key not in replaced] if old else []
        self.keys = list(dict.fromkeys([*(old.keys if old else ()), *(pair.key for pair in pairs)]))
        self.numbers: int | None = None
        self.regions: set[int] = set()
        if old and self._kept:
            regions, self.numbers = old.shape(self._kept[0])
            self.regions.add(regions)

    def write(self) -> None:
        """Write it and read it again."""
        total = sum(pair.size for pair in self.pairs)
        size = feature_lmdb.least_map(len(self.pairs), total) + (self._old.size if self._old else 0)
        require_space(self._target, size)
        keys = [key.encode() for key in self.keys]
        try:
            with Progress("Writing region features", len(keys), "image") as bar:
                feature_lmdb.write(self._target, self._records(bar), size, keys)
            written = feature_keys.read(self._target, walk=True)
        except lmdb.Error as error:
            raise ResourceError(f"{self._target}: it cannot be written: {error}") from error
        if written != self.keys:
            raise DatasetError(f"{self._target}: it was not written as it should be")

    def _records(self, bar: Progress) -> Iterator[feature_lmdb.Record]:
        # The files first: what is wrong with one shows before a large LMDB was copied.
        for pair in self.pairs:
            record = read_record(pair)
            self._note(pair, record)
            yield pair.key.encode(), pickle.dumps(record)
            bar.advance(1)
        for key in self._kept:
            assert self._old is not None
            yield key.encode(), self._old.record(key)
            bar.advance(1)

    def _note(self, pair: Pair, record: dict[str, Any]) -> None:
        regions, numbers = regions_of(record).shape
        if self.numbers not in (None, numbers):
            whom = f"those in {self._old.folder}" if self._old else "the others"
            raise DatasetError(
                f"{pair.features}: {numbers} numbers describe a region, and {self.numbers} in {whom}",
                hint="one LMDB holds the features of one detector; --output LMDB builds another one",
            )
        self.numbers = numbers
        self.regions.add(regions)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
