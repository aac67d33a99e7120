"""Builds an LMDB from what MMF's extraction scripts write, ``NAME.npy`` and ``NAME_info.npy``.

The first holds an array of regions × numbers, the second a pickled dictionary with the boxes and what was
seen in them (``tools/scripts/features`` of MMF's repository).

For ``mmfw features add``, in a process of its own:
``python -m mmf_win.features.builder TARGET FOLDER ...``, where
:func:`~mmf_win.features.lmdb_file.print_answer` prints what :func:`build_lmdb` returns.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np

from mmf_win.console import Progress
from mmf_win.errors import DatasetError
from mmf_win.features import lmdb_file
from mmf_win.features.safe_pickle import DamagedPickleError, load_npy
from mmf_win.unpacking.staging import require_space

_INFO_SUFFIX = "_info.npy"
_INFO_KEYS = ("image_height", "image_width", "num_boxes", "objects", "cls_prob", "bbox")
_MAX_KEY_BYTES = 511  # of LMDB, in bytes


def main(target: str, *folders: str) -> int:
    """Build an LMDB for the parent."""
    return lmdb_file.print_answer(Path(target), lambda: build_lmdb(Path(target), [*map(Path, folders)]))


def build_lmdb(target: Path, folders: Sequence[Path]) -> dict[str, Any]:
    """Write ``target``, an LMDB with the records of the files in ``folders``.

    Returned are the ``keys`` of the LMDB, how many ``numbers`` describe a region, the smallest and the
    largest number of ``regions``, and the keys ``without_info``. Raises DatasetError where a file cannot be
    used, or is of another detector, and ResourceError where there is no room; nothing was written then.
    """
    pairs = find_feature_files(folders)
    files = [file for path in pairs.values() for file in (path, _info_path(path)) if file.is_file()]
    size = lmdb_file.min_map_size(len(pairs), sum(file.stat().st_size for file in files))
    require_space(target, size)
    numbers: dict[int, Path] = {}
    regions: set[int] = set()

    def iter_records() -> Iterator[tuple[str, bytes]]:
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
            regions.add(_count_regions(record["features"]))
            yield key, pickle.dumps(record)
            bar.advance(1)

    with Progress("Writing region features", len(pairs), "image") as bar:
        keys = lmdb_file.write(target, iter_records(), size)
    return {
        "keys": keys,
        "numbers": next(iter(numbers)),
        "regions": (min(regions), max(regions)),
        "without_info": [key for key, path in pairs.items() if not _info_path(path).is_file()],
    }


def find_feature_files(folders: Sequence[Path]) -> dict[str, Path]:
    """The features below folders: key → ``NAME.npy``. MMF's converter makes the key from the path.

    Hidden files are left out, as by that. Raises DatasetError where there are no features, two have the same
    key, or one cannot be a key.
    """
    pairs: dict[str, Path] = {}
    for folder in folders:
        for name in sorted(glob("**/*.npy", root_dir=folder, recursive=True)):  # noqa: PTH207 – see above
            if name.endswith(_INFO_SUFFIX):
                continue
            path, key = folder / name, Path(name).as_posix().removesuffix(".npy")
            if key == "keys" or len(key.encode()) > _MAX_KEY_BYTES:  # MMF lists all keys under "keys"
                message = f"{path}: an LMDB for MMF cannot have this name as a key"
                raise DatasetError(message, hint="rename it")
            if key in pairs:
                raise DatasetError(f"{path}: {pairs[key]} is of the same image", hint="take one of them away")
            pairs[key] = path
    if not pairs:
        raise DatasetError(
            f"{', '.join(map(str, folders))}: there is no .npy file with features",
            hint="MMF's extraction scripts write NAME.npy and NAME_info.npy; `mmfw features extract` puts a "
            "finished LMDB in place",
        )
    return pairs


def read_record(path: Path, key: str) -> dict[str, Any]:
    """The dictionary that MMF's ``lmdb_conversion.py`` stores for ``NAME.npy`` and its ``NAME_info.npy``.

    Raises DatasetError where a file cannot be read, would run code, or does not hold what MMF can use.
    """
    features: Any = _load_file(path, load_npy)
    is_float = np.issubdtype(features.dtype, np.floating)
    if features.ndim < 2 or not features.size or not is_float or not np.isfinite(features).all():
        found = f"this is an array of {features.dtype} with the shape {features.shape}"
        raise DatasetError(f"{path}: features are finite floating-point numbers, regions × numbers; {found}")
    record = {"feature_path": key, "features": features}
    info = _info_path(path)
    if info.is_file():
        record |= _load_file(info, _load_info)
        # The script for Faster R-CNN may store more features than boxes, and says how many boxes.
        allowed = _count_regions(features), record["num_boxes"]
        for name in ("bbox", "objects", "cls_prob"):
            value = record[name]
            rows = len(value) if isinstance(value, np.ndarray) and value.ndim else "no"
            if value is not None and rows not in allowed:
                raise DatasetError(f"{info}: {name} has {rows} rows for {allowed[0]} regions")
    return record


def _load_file(path: Path, load: Callable[[bytes], Any]) -> Any:
    try:
        return load(path.read_bytes())
    except MemoryError:
        raise
    except Exception as error:  # whatever a damaged file leads to
        reason = error.reason if isinstance(error, DamagedPickleError) else str(error)
        why = reason.partition("\n")[0] or type(error).__name__
        raise DatasetError(
            f"{path}: it cannot be read: {why}",
            hint="extract the features of this image again, or take the file away; "
            "save a tensor as an array, by .numpy()",
        ) from error


def _load_info(content: bytes) -> dict[str, Any]:
    found = load_npy(content).item()
    if np.size(found.get("num_boxes")) > 1:
        raise ValueError("num_boxes is not one number")
    return {name: found.get(name) for name in _INFO_KEYS}


def _info_path(path: Path) -> Path:
    """The file that belongs to ``NAME.npy``; it need not exist."""
    return path.with_name(path.stem + _INFO_SUFFIX)


def _count_regions(features: Any) -> int:
    """How many regions MMF reads; of a grid, each cell is one."""
    return int(features.size // features.shape[-1])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
