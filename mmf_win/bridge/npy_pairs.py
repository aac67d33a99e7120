"""Reads region features as MMF's extraction scripts write them: ``NAME.npy`` and ``NAME_info.npy``.

The first holds an array of regions × numbers, the second a pickled dictionary with the boxes and what was
seen in them (``tools/scripts/features`` of MMF's repository). A pickle can run any code, so only numpy's own
classes are loaded from one.
"""

from __future__ import annotations

import filecmp
import io
import operator
import os
import pickle
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from mmf_win.errors import DatasetError

_INFO, _FULL = "_info", "_full"
_LONGEST_KEY = 511  # of LMDB, in bytes
_SHOWN = 3
_COMBINED = (
    "features",
    "feature",
    "image_feat",
)  # where MMF finds the array in a dictionary, the oldest form
_NUMPY = {
    *(
        (f"numpy.{core}.multiarray", name)
        for core in ("core", "_core")
        for name in ("_reconstruct", "scalar")
    ),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


@dataclass(frozen=True)
class Pair:
    """The features of an image.

    Attributes:
        key: under which MMF's converter stores them: the path below the folder, without ``.npy``.
        features: the file that holds them.
        info: the file with their boxes; None where there is none.
    """

    key: str
    features: Path
    info: Path | None

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(path.stat().st_size for path in (self.features, self.info) if path)


@dataclass
class Found:
    """What was found in folders.

    Attributes:
        pairs: key → its files.
        notes: what was left aside, for people.
    """

    pairs: dict[str, Pair] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_pairs(folders: Sequence[Path], *, force: bool = False) -> Found:
    """The features below folders, which may lie in subfolders.

    Args:
        folders: what to look through.
        force: where two have the features of an image, take those of the last one, be they the same or not.

    Raises:
        DatasetError: there are none, or there are two for an image.
    """
    found = Found()
    for folder in folders:
        _look_through(folder, found, force)
    if not found.pairs:
        listed = ", ".join(map(str, folders))
        raise DatasetError(
            f"{listed}: there is no .npy file with features",
            hint="MMF's extraction scripts write NAME.npy and NAME_info.npy; `mmfw features extract` puts a "
            "finished LMDB in place",
        )
    return found


def _look_through(folder: Path, found: Found, force: bool) -> None:
    names = _npy_below(folder)
    infos = {name for name in names if _stem(name).endswith(_INFO)}
    features = set(names) - infos
    unused, drawn = infos.copy(), []
    for name in (name for name in names if name in features):
        path, info = folder / name, f"{_stem(name)}{_INFO}.npy"
        if info not in infos and _is_for_drawing(path, name, features):
            drawn.append(name)
            continue
        unused.discard(info)
        pair = Pair(_key(path, name), path, folder / info if info in infos else None)
        other = found.pairs.get(pair.key)
        if other and not (force and not other.features.is_relative_to(folder)) and not _same(pair, other):
            raise DatasetError(
                f"{path}: {other.features} has the same key, {pair.key}, and other features",
                hint="remove one of them; of two folders, --force takes the last one's",
            )
        found.pairs[pair.key] = pair
    for left_out, why in (
        (drawn, "hold what --visualize drew"),
        (sorted(unused), "have no features beside them"),
    ):
        if left_out:
            shown = ", ".join(left_out[:_SHOWN]) + (" …" if len(left_out) > _SHOWN else "")
            found.notes.append(f"{folder}: {len(left_out)} files are left out, which {why}: {shown}")


def _is_for_drawing(path: Path, name: str, features: Container[str]) -> bool:
    """Whether the script for Faster R-CNN made this with ``--visualize``: a pickle of torch's tensors."""
    if not _stem(name).endswith(_FULL) or f"{_stem(name).removesuffix(_FULL)}.npy" not in features:
        return False
    with path.open("rb") as file, suppress(ValueError):
        return _holds_pickle(file)
    return False


def _same(one: Pair, other: Pair) -> bool:
    if (one.info is None) != (other.info is None):
        return False
    files = [(one.features, other.features)]
    files += [(one.info, other.info)] if one.info and other.info else []
    return all(filecmp.cmp(a, b, shallow=False) for a, b in files)


def _npy_below(folder: Path) -> list[str]:
    """Names relative to the folder, with ``/``; hidden files are not looked at, as by MMF's converter."""
    names = []
    for here, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = Path(here).relative_to(folder)
        names += [(below / n).as_posix() for n in files if n.endswith(".npy") and not n.startswith(".")]
    return sorted(names)


def _stem(name: str) -> str:
    return name.split(".npy")[0]


def _key(path: Path, name: str) -> str:
    key = _stem(name)
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        raise DatasetError(f"{path}: its name is not valid text") from None
    if key == "keys":
        raise DatasetError(f"{path}: the key keys is taken: MMF's LMDB lists all keys under it")
    if not 0 < length <= _LONGEST_KEY:
        raise DatasetError(f"{path}: its name must have 1 to {_LONGEST_KEY} bytes, not {length}")
    return key


def read_record(pair: Pair) -> dict[str, Any]:
    """The dictionary that MMF's ``lmdb_conversion.py`` stores for these files.

    Raises:
        DatasetError: a file cannot be read, would run code, or does not hold what MMF can use.
    """
    record: dict[str, Any] = {"feature_path": pair.key, "features": _load(pair.features)}
    regions = len(_regions(pair.features, record["features"]))
    if pair.info is not None:
        loaded = _load(pair.info)
        info = loaded.item() if loaded.dtype.hasobject and not loaded.ndim else None
        if not isinstance(info, dict):
            raise DatasetError(f"{pair.info}: it holds no dictionary")
        for name in ("image_height", "image_width", "num_boxes", "objects", "cls_prob", "bbox"):
            record[name] = info.get(name)
        _check_info(pair.info, record, regions)
    return record


def regions_of(record: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The features of a record as MMF reads them, regions × numbers."""
    return _regions(Path(str(record["feature_path"])), record["features"])


def _regions(path: Path, features: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if features.dtype.hasobject and features.size == 1 and isinstance(features.item(), dict):
        inside = features.item()
        features = next((inside[name] for name in _COMBINED if name in inside), features)
    if not isinstance(features, np.ndarray) or not np.issubdtype(features.dtype, np.floating):
        what = getattr(features, "dtype", type(features).__name__)
        raise DatasetError(f"{path}: features are floating-point numbers, not {what}")
    if features.ndim < 2 or not features.shape[-1]:
        shape = " × ".join(map(str, features.shape)) or "one number"
        raise DatasetError(f"{path}: features are an array of regions × numbers, not {shape}")
    if not np.isfinite(features).all():
        raise DatasetError(f"{path}: some features are not numbers (NaN or infinite)")
    return features.reshape(-1, features.shape[-1])  # of a grid, MMF takes each cell for a region


def _check_info(path: Path, record: dict[str, Any], regions: int) -> None:
    """Refuse what would end a run: the number of rows, and the values that boxes are divided by."""

    def require(is_right: bool, what: str) -> None:
        if not is_right:
            raise DatasetError(f"{path}: {what}")

    boxes, counted = record["bbox"], record["num_boxes"]
    if counted is not None:
        try:
            counted = operator.index(counted)
        except TypeError:
            require(False, f"num_boxes is a whole number, not {counted!r}")
    allowed = {regions}
    if boxes is not None:
        is_array = isinstance(boxes, np.ndarray) and boxes.ndim == 2 and boxes.shape[1] >= 4
        require(is_array, f"bbox is an array of regions × 4, not {np.shape(boxes)}")
        # The script for Faster R-CNN stores more features than boxes, and says how many boxes.
        require(
            len(boxes) in {regions, min(regions, counted or regions)},
            f"bbox has {len(boxes)} rows for {regions} regions",
        )
        allowed.add(len(boxes))
    for name in ("objects", "cls_prob"):
        value = record[name]
        if value is not None:
            rows = len(value) if isinstance(value, np.ndarray) and value.ndim else None
            require(rows in allowed, f"{name} has {rows} rows for {regions} regions")
    for name in ("image_width", "image_height"):
        value = record[name]
        is_number = isinstance(value, (int, float, np.number)) and bool(value > 0)
        require(value is None or is_number, f"{name} is a number of pixels, not {value!r}")


def _load(path: Path) -> np.ndarray[Any, Any]:
    try:
        with path.open("rb") as file:
            if _holds_pickle(file):
                return np.asanyarray(_NumpyOnly(file, str(path)).load())
            file.seek(0)
            loaded: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
            return loaded
    except DatasetError:
        raise
    except Exception as error:  # whatever a damaged file leads to
        raise DatasetError(
            f"{path}: it cannot be read: {error or type(error).__name__}",
            hint="it may be incomplete: extract the features of this image again",
        ) from error


def _holds_pickle(file: IO[bytes]) -> bool:
    """Whether what follows the header, to which this reads, is a pickle."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return bool(np.lib.format.read_array_header_1_0(file)[2].hasobject)
    return version == (2, 0) and bool(np.lib.format.read_array_header_2_0(file)[2].hasobject)


def unpickled(record: bytes, shown: str) -> Any:
    """A record of an LMDB; see :func:`read_record` for the rest.

    Args:
        record: its bytes.
        shown: what errors call it.

    Raises:
        DatasetError: it names something else than numpy's classes, or is damaged.
    """
    try:
        return _NumpyOnly(io.BytesIO(record), shown).load()
    except DatasetError:
        raise
    except Exception as error:
        raise DatasetError(f"{shown}: it cannot be read: {error or type(error).__name__}") from error


class _NumpyOnly(pickle.Unpickler):
    """Loads plain values and numpy's arrays, and nothing that could do something."""

    def __init__(self, file: IO[bytes], shown: str) -> None:
        super().__init__(file)
        self._shown = shown

    def find_class(self, module: str, name: str) -> Any:
        """What rebuilds arrays; everything else is refused."""
        if (module, name) in _NUMPY:
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):  # bytes in a file that numpy before 1.17 wrote
            return _latin_1
        if (module, name) in (("__builtin__", "bytes"), ("builtins", "bytes")):
            return bytes
        raise DatasetError(
            f"{self._shown}: it wants {module}.{name}, and only numpy's classes are loaded from a pickle",
            hint="save plain numbers and numpy arrays; a tensor becomes one by .numpy()",
        )


def _latin_1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding}")
    return text.encode("latin-1")
