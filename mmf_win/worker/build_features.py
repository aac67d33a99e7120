"""Builds an LMDB of region features in a process of its own, for ``mmfw features add``.

Run as ``python -m mmf_win.worker.build_features TARGET FOLDER ... OUTPUT``. The file ``OUTPUT`` is JSON: what
:func:`build` returns, or under ``error`` what is wrong, with its ``hint`` and its ``kind``, a class of
:mod:`mmf_win.errors`.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb

from mmf_win.console import Progress
from mmf_win.errors import DatasetError, Interrupted, MmfwError, ResourceError
from mmf_win.files import write_json
from mmf_win.unpacking.staging import require_space
from mmf_win.worker import feature_lmdb
from mmf_win.worker.feature_files import find_pairs, info_of, read_record, regions_of


def main(target: str, *folders_and_output: str) -> int:
    """Do it, write what was done, and return the exit code."""
    *folders, output = map(Path, folders_and_output)
    try:
        built = build(Path(target), folders)
    except MmfwError as error:
        built = {"error": str(error), "hint": error.hint, "kind": type(error).__name__}
    except (OSError, lmdb.Error) as error:
        built = {"error": f"{target}: {error}", "hint": None, "kind": ResourceError.__name__}
    except KeyboardInterrupt:
        return Interrupted.exit_code
    write_json(output, built)
    return 0


def build(target: Path, folders: Sequence[Path]) -> dict[str, Any]:
    """Write ``target``, an LMDB with the records of the files in ``folders``.

    Returns:
        ``keys`` of the LMDB; how many ``numbers`` describe a region; the smallest and the largest number of
        ``regions``; the keys ``without_info``.

    Raises:
        DatasetError: a file cannot be used, or is of another detector.
        ResourceError: there is not enough room; nothing was written.
    """
    pairs = find_pairs(folders)
    files = [file for path in pairs.values() for file in (path, info_of(path)) if file.is_file()]
    size = feature_lmdb.least_map(len(pairs), sum(file.stat().st_size for file in files))
    require_space(target, size)
    numbers: dict[int, Path] = {}
    regions: set[int] = set()

    def records() -> Iterator[tuple[str, bytes]]:
        for key, path in pairs.items():
            record = read_record(path, key)
            numbers.setdefault(record["features"].shape[-1], path)
            if len(numbers) > 1:
                (first, one), (second, other) = numbers.items()
                raise DatasetError(
                    f"{other}: {second} numbers describe a region, and {first} in {one}; one LMDB holds the "
                    "features of one detector",
                    hint="build one of each folder",
                )
            regions.add(regions_of(record["features"]))
            yield key, pickle.dumps(record)
            bar.advance(1)

    with Progress("Writing region features", len(pairs), "image") as bar:
        keys = feature_lmdb.write(target, records(), size)
    return {
        "keys": keys,
        "numbers": next(iter(numbers)),
        "regions": (min(regions), max(regions)),
        "without_info": [key for key, path in pairs.items() if not info_of(path).is_file()],
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
