"""Builder of an LMDB from the output of MMF's extraction scripts, ``NAME.npy`` and ``NAME_info.npy``.

The first file contains an array of shape (regions, numbers), the second a pickled dictionary with the boxes
and the objects in them (``tools/scripts/features`` in MMF's repository).

``mmfw features add`` runs it in a separate process, ``python -m mmf_win.features.builder TARGET FOLDER ...``,
which prints the result of :func:`build_lmdb` with :func:`~mmf_win.features.lmdb_file.print_answer`.
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
_MAX_KEY_BYTES = 511  # limit of LMDB


def main(target: str, *folders: str) -> int:
    """Build an LMDB and print the result for the parent process."""
    return lmdb_file.print_answer(Path(target), lambda: build_lmdb(Path(target), [*map(Path, folders)]))


def build_lmdb(target: Path, folders: Sequence[Path]) -> dict[str, Any]:
    """Write an LMDB with the records of the feature files in some folders.

    Args:
        target: The LMDB folder to create.
        folders: Folders with feature files, which are searched recursively.

    Returns:
        A dictionary with ``keys``, the keys of the LMDB; ``numbers``, the length of a region's feature vector;
        ``regions``, the smallest and the largest number of regions of an image; and ``without_info``, the keys
        of images without an info file.

    Raises:
        DatasetError: A file cannot be used, or the feature vectors of two files differ in length, because
            different detectors extracted them; nothing was written.
        ResourceError: There is not enough disk space; nothing was written.
    """
    pairs = find_feature_files(folders)
    files = [file for path in pairs.values() for file in (path, _info_path(path)) if file.is_file()]
    size = lmdb_file.min_map_size(len(pairs), sum(file.stat().st_size for file in files))
    require_space(target, size)
    path_by_size: dict[int, Path] = {}
    region_counts: set[int] = set()

    def iter_records() -> Iterator[tuple[str, bytes]]:
        for key, path in pairs.items():
            record = read_record(path, key)
            path_by_size.setdefault(record["features"].shape[-1], path)
            if len(path_by_size) > 1:
                (first_size, first_path), (second_size, second_path) = path_by_size.items()
                raise DatasetError(
                    f"{second_path}: {second_size} numbers per region, but {first_size} in {first_path} "
                    "(an LMDB has the features of one detector)",
                    hint="build one LMDB per folder",
                )
            region_counts.add(_count_regions(record["features"]))
            yield key, pickle.dumps(record)
            bar.advance(1)

    with Progress("Writing region features", len(pairs), "image") as bar:
        keys = lmdb_file.write_lmdb(target, iter_records(), size)
    return {
        "keys": keys,
        "numbers": next(iter(path_by_size)),
        "regions": (min(region_counts), max(region_counts)),
        "without_info": [key for key, path in pairs.items() if not _info_path(path).is_file()],
    }


def find_feature_files(folders: Sequence[Path]) -> dict[str, Path]:
    """Find the feature files below some folders.

    Args:
        folders: Folders to search.

    Returns:
        Key → ``NAME.npy``. Like in MMF's converter, the key is the relative path without its suffix, and
        hidden files are ignored.

    Raises:
        DatasetError: There are no features, two files have the same key, or a name cannot be a key.
    """
    pairs: dict[str, Path] = {}
    for folder in folders:
        for name in sorted(glob("**/*.npy", root_dir=folder, recursive=True)):  # noqa: PTH207 – ignores hidden files
            if name.endswith(_INFO_SUFFIX):
                continue
            path, key = folder / name, Path(name).as_posix().removesuffix(".npy")
            if key == "keys" or len(key.encode()) > _MAX_KEY_BYTES:  # MMF lists all keys under "keys"
                message = f"{path}: name cannot be the key of an LMDB for MMF"
                raise DatasetError(message, hint="rename the file")
            if key in pairs:
                raise DatasetError(f"{path}: same image as {pairs[key]}", hint="remove one of the two files")
            pairs[key] = path
    if not pairs:
        raise DatasetError(
            f"{', '.join(map(str, folders))}: no .npy files with features",
            hint="add the NAME.npy and NAME_info.npy files of MMF's extraction scripts; for a finished LMDB, "
            "run `mmfw features extract`",
        )
    return pairs


def read_record(path: Path, key: str) -> dict[str, Any]:
    """Return the record that MMF's ``lmdb_conversion.py`` stores for a feature file and its info file.

    Args:
        path: The file ``NAME.npy``; its ``NAME_info.npy`` is optional.
        key: Key of the record.

    Returns:
        The record, see :mod:`mmf_win.features.lmdb_file`.

    Raises:
        DatasetError: A file cannot be read, would run code, or contains no features that MMF can use.
    """
    features: Any = _load_file(path, load_npy)
    is_float = np.issubdtype(features.dtype, np.floating)
    if features.ndim < 2 or not features.size or not is_float or not np.isfinite(features).all():
        description = f"an array of {features.dtype} with the shape {features.shape}"
        expected = "finite floating-point numbers (regions × numbers)"
        raise DatasetError(f"{path}: expected {expected}, got {description}")
    record = {"feature_path": key, "features": features}
    info = _info_path(path)
    if info.is_file():
        record |= _load_file(info, _load_info)
        # The script for Faster R-CNN may store more features than boxes, and records the number of boxes.
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
    except Exception as error:  # a damaged file may raise any exception
        reason = error.reason if isinstance(error, DamagedPickleError) else str(error)
        message = reason.partition("\n")[0] or type(error).__name__
        raise DatasetError(
            f"{path}: cannot be read ({message})",
            hint="extract the features of this image again or remove the file; save tensors as arrays with .numpy()",
        ) from error


def _load_info(content: bytes) -> dict[str, Any]:
    info = load_npy(content).item()
    if np.size(info.get("num_boxes")) > 1:
        raise ValueError("num_boxes is not one number")
    return {name: info.get(name) for name in _INFO_KEYS}


def _info_path(path: Path) -> Path:
    """Return the info file of a feature file; it need not exist."""
    return path.with_name(path.stem + _INFO_SUFFIX)


def _count_regions(features: Any) -> int:
    """Return the number of regions that MMF reads; each cell of a grid is one."""
    return int(features.size // features.shape[-1])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
