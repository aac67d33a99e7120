"""Of which images an LMDB has region features, and which rows of a split have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path

from mmf_win.bridge.install import require_packages
from mmf_win.bridge.needs.child import answer_of
from mmf_win.dataset.annotations import Row
from mmf_win.errors import DatasetError
from mmf_win.files import read_json, write_json
from mmf_win.integrity import Check

_NOTE = "mmfw-keys.json"


def image_keys(folder: Path, *, walk: bool = False) -> frozenset[str]:
    """The keys of an LMDB of region features, remembered beside it for as long as nobody touches it.

    Args:
        folder: the LMDB.
        walk: read every record, whatever is remembered; of files for which nothing vouches.

    Raises:
        DatasetError: it is cut off or damaged.
        MmfError: lmdb is not installed.
    """
    if not walk:
        with suppress(OSError, ValueError, TypeError, KeyError):
            remembered = read_json(folder.parent / _NOTE)
            if (remembered["lmdb"], remembered["state"]) == (folder.name, _state(folder)):
                return frozenset(remembered["keys"])
    keys = _ask(folder, walk)
    remember_keys(folder, keys)
    return frozenset(keys)


def remember_keys(folder: Path, keys: Sequence[str]) -> None:
    """Note beside an LMDB which keys it has, for as long as nobody touches it."""
    with suppress(OSError):
        note = {"lmdb": folder.name, "state": _state(folder), "keys": list(keys)}
        write_json(folder.parent / _NOTE, note)


def _state(folder: Path) -> list[int]:
    data = folder / "data.mdb" if folder.is_dir() else folder
    return list(astuple(Check.now(data.stat())))[:-1]


def _ask(folder: Path, walk: bool) -> list[str]:
    require_packages("lmdb")
    words = [str(folder), *(["--walk"] if walk else [])]
    found, code = answer_of("mmf_win.bridge.feature_keys", *words)
    if found is None:  # reading what is not there ends the process
        found = {"problem": f"it cannot be read to its end (exit code {code})"}
    if "problem" in found:
        raise DatasetError(f"{folder}: not whole: {found['problem']}", hint="mmfw features repair")
    return [str(key) for key in found["keys"]]


def without_features(rows: Iterable[Row], keys: Collection[str]) -> list[Row]:
    """The rows whose image has no record, by the names that MMF would ask for.

    It takes the number at a name's end first, without its zeros, then the name itself
    (mmf.datasets.databases.readers.feature_readers).
    """
    return [row for row in rows if key_of(row.img, keys) is None]


def matched(rows: Iterable[Row], keys: Collection[str]) -> tuple[frozenset[str], dict[str, str]]:
    """Which keys MMF would find for the rows' images, and for which images it may find another one's.

    It knows no folders, and a number at a name's end can mislead it: for ``a_12.png`` it takes the key ``12``
    before ``a_12``.

    Returns:
        the keys that are found, and image → key that may be of another one.
    """
    found = {row.img: key for row in rows if (key := key_of(row.img, keys)) is not None}
    taken, stems = Counter(found.values()), Counter(map(_stem, found))
    mistaken = {}
    for image, key in found.items():
        stem = _stem(image)
        if stems[stem] > 1 or (key != stem and (stem in keys or key in stems or taken[key] > 1)):
            mistaken[image] = key
    return frozenset(taken), mistaken


def key_of(image: str, keys: Collection[str]) -> str | None:
    """The key of the record that MMF takes for an image; None where there is none."""
    return next((key for key in _asked_for(image) if key in keys), None)


def _asked_for(image: str) -> tuple[str, ...]:
    stem = _stem(image)
    try:
        return str(int(stem.split("_")[-1])), stem
    except ValueError:
        return (stem,)


def _stem(image: str) -> str:
    return image.split("/")[-1].split(".")[0]
