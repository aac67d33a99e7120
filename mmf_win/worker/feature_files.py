"""Region features as MMF's extraction scripts write them: ``NAME.npy`` and ``NAME_info.npy``.

The first holds an array of regions × numbers, the second a pickled dictionary with the boxes and what was
seen in them (``tools/scripts/features`` of MMF's repository). A pickle can run any code, so only numpy's own
classes are loaded from one.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np

from mmf_win.errors import DatasetError, NoFeatureFiles

_INFO = "_info.npy"
_OF_INFO = ("image_height", "image_width", "num_boxes", "objects", "cls_prob", "bbox")
_LONGEST_KEY = 511  # of LMDB, in bytes
_NUMPY = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


def find_pairs(folders: Sequence[Path]) -> dict[str, Path]:
    """The features below folders: key → ``NAME.npy``. MMF's converter makes the key from the path.

    Args:
        folders: what to look through. Hidden files are left out, as by MMF's converter.

    Raises:
        NoFeatureFiles: there are none.
        DatasetError: two have the same key, or one cannot be a key.
    """
    pairs: dict[str, Path] = {}
    for folder in folders:
        for name in sorted(glob("**/*.npy", root_dir=folder, recursive=True)):  # noqa: PTH207 – see Args
            if name.endswith(_INFO):
                continue
            path, key = folder / name, Path(name).as_posix().removesuffix(".npy")
            if key == "keys" or len(key.encode()) > _LONGEST_KEY:  # MMF lists all keys under "keys"
                raise DatasetError(
                    f"{path}: an LMDB for MMF cannot have this name as a key", hint="rename it"
                )
            if key in pairs:
                raise DatasetError(f"{path}: {pairs[key]} is of the same image", hint="take one of them away")
            pairs[key] = path
    if not pairs:
        raise NoFeatureFiles(f"{', '.join(map(str, folders))}: there is no .npy file with features")
    return pairs


def info_of(path: Path) -> Path:
    """The file that belongs to ``NAME.npy``; it need not exist."""
    return path.with_name(path.stem + _INFO)


def read_record(path: Path, key: str) -> dict[str, Any]:
    """The dictionary that MMF's ``lmdb_conversion.py`` stores for ``NAME.npy`` and its ``NAME_info.npy``.

    Raises:
        DatasetError: a file cannot be read, would run code, or does not hold what MMF can use.
    """
    with reading(path), path.open("rb") as file:
        features: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
    is_float = np.issubdtype(features.dtype, np.floating)
    if features.ndim < 2 or not features.size or not is_float or not np.isfinite(features).all():
        raise DatasetError(
            f"{path}: features are finite floating-point numbers, regions × numbers; this is an array of "
            f"{features.dtype} with the shape {features.shape}"
        )
    record: dict[str, Any] = {"feature_path": key, "features": features}
    info = info_of(path)
    if info.is_file():
        with reading(info), info.open("rb") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
            found = _NumpyOnly(file).load().item()
            record |= {name: found.get(name) for name in _OF_INFO}
        _check_rows(info, record)
    return record


def regions_of(features: np.ndarray[Any, Any]) -> int:
    """How many regions MMF reads; of a grid, each cell is one."""
    return features.size // int(features.shape[-1])


def unpickled(record: bytes | memoryview) -> Any:
    """A record of an LMDB, or the list of its keys.

    Raises:
        Refused: it names something else than numpy's classes.
    """
    return _NumpyOnly(io.BytesIO(record)).load()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever reading a file raises into a DatasetError that names it."""
    try:
        yield
    except Exception as error:  # whatever a damaged file leads to
        raise DatasetError(
            f"{path}: it cannot be read: {error or type(error).__name__}",
            hint="extract the features of this image again, or take the file away; "
            "save a tensor as an array, by .numpy()",
        ) from error


def _check_rows(path: Path, record: dict[str, Any]) -> None:
    # The script for Faster R-CNN may store more features than boxes, and says how many boxes.
    allowed = regions_of(record["features"]), record["num_boxes"]
    for name in ("bbox", "objects", "cls_prob"):
        value = record[name]
        rows = len(value) if isinstance(value, np.ndarray) and value.ndim else "no"
        if value is not None and rows not in allowed:
            raise DatasetError(f"{path}: {name} has {rows} rows for {allowed[0]} regions")


class Refused(pickle.UnpicklingError):
    """A pickle names something that is not numpy's, and to load it could run any code."""


class _NumpyOnly(pickle.Unpickler):
    """Loads plain values and numpy's arrays, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Allow what rebuilds arrays; refuse everything else."""
        if (module.replace("numpy._core", "numpy.core"), name) in _NUMPY:  # numpy 2 has moved them
            return super().find_class(module, name)
        raise Refused(f"it names {module}.{name}, and only numpy's classes are loaded")
