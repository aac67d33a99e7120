"""Of which images an LMDB has region features, and which rows of a split have none."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path

from mmf_win.bridge.install import require_packages
from mmf_win.dataset.annotations import Row
from mmf_win.errors import DatasetError, Interrupted
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
    data = folder / "data.mdb" if folder.is_dir() else folder
    note = folder.parent / _NOTE
    state = list(astuple(Check.now(data.stat())))[:-1]
    if not walk:
        with suppress(OSError, ValueError, TypeError, KeyError):
            remembered = read_json(note)
            if (remembered["lmdb"], remembered["state"]) == (folder.name, state):
                return frozenset(remembered["keys"])
    keys = _ask(folder, walk)
    with suppress(OSError):
        write_json(note, {"lmdb": folder.name, "state": state, "keys": keys})
    return frozenset(keys)


def _ask(folder: Path, walk: bool) -> list[str]:
    require_packages("lmdb")
    with tempfile.TemporaryDirectory(prefix="mmfw-keys-") as scratch:
        output = Path(scratch, "keys.json")
        command = [sys.executable, "-m", "mmf_win.bridge.feature_keys", str(folder), str(output)]
        done = subprocess.run([*command, *(["--walk"] if walk else [])], stdin=subprocess.DEVNULL)
        if done.returncode == Interrupted.exit_code:
            raise Interrupted("interrupted")
        try:
            found = read_json(output)
        except OSError:  # reading what is not there ends the process
            found = {"problem": f"it cannot be read to its end (exit code {done.returncode})"}
    if "problem" in found:
        raise DatasetError(f"{folder}: not whole: {found['problem']}", hint="mmfw features repair")
    return [str(key) for key in found["keys"]]


def without_features(rows: Iterable[Row], keys: Collection[str]) -> list[Row]:
    """The rows whose image has no record, by the names that MMF would ask for.

    It takes the number at a name's end first, without its zeros, then the name itself
    (mmf.datasets.databases.readers.feature_readers).
    """
    return [row for row in rows if not any(key in keys for key in _asked_for(row.img))]


def features_key(row: Row, keys: Collection[str]) -> str:
    """The key of the record that MMF takes for a row which has one."""
    return next(key for key in _asked_for(row.img) if key in keys)


def _asked_for(image: str) -> tuple[str, ...]:
    stem = image.split("/")[-1].split(".")[0]
    try:
        return str(int(stem.split("_")[-1])), stem
    except ValueError:
        return (stem,)
