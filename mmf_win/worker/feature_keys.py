"""Reads an LMDB of region features in a process of its own: one that was cut off kills whoever maps it.

Run as ``python -m mmf_win.worker.feature_keys FOLDER [--walk] OUTPUT``. ``OUTPUT`` is JSON: under ``keys``
the images that it has features of, or under ``problem`` what is wrong with it. ``--walk`` reads every record.
"""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import lmdb

from mmf_win.console import Progress
from mmf_win.files import write_json


def main(folder: Path, output: Path, *, walk: bool) -> int:
    """Write what was found, and return the exit code."""
    try:
        found: dict[str, Any] = {"keys": read(folder, walk=walk)}
    except (lmdb.Error, ValueError) as error:
        found = {"problem": f"{type(error).__name__}: {error}"}
    write_json(output, found)
    return 0


def read(folder: Path, *, walk: bool) -> list[str]:
    """The keys of the images, as MMF's ``LMDBFeatureReader`` finds them.

    Args:
        folder: holds ``data.mdb``; or that file itself.
        walk: read every record, too.

    Raises:
        lmdb.Error: this is no LMDB, or its pages do not fit together.
        ValueError: it is cut off, or without the list of its keys.
    """
    data = folder / "data.mdb" if folder.is_dir() else folder
    options = {"readonly": True, "lock": False, "readahead": walk, "subdir": folder.is_dir()}
    with lmdb.open(str(folder), **options) as environment:
        needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if (there := data.stat().st_size) < needed:
            raise ValueError(f"{there} of {needed} bytes are there")
        with environment.begin(buffers=True) as transaction:
            listed = transaction.get(b"keys")
            if listed is None:
                raise ValueError("the list of its keys is missing")
            keys = _keys(listed)
            if walk:
                _walk(transaction, environment.stat()["entries"])
            absent = next((key for key in keys if transaction.get(key.encode()) is None), None)
            if absent is not None:
                raise ValueError(f"the record {absent} is listed and missing")
    return keys


def _walk(transaction: Any, entries: int) -> None:
    with Progress("Reading region features", entries, "image") as progress:
        for _, value in transaction.cursor():
            bytes(value)  # to touch each of its pages
            progress.advance(1)


def _keys(pickled: memoryview) -> list[str]:
    try:
        listed = [
            key.decode() if isinstance(key, bytes) else key for key in _Plain(io.BytesIO(pickled)).load()
        ]
    except Exception as error:  # whatever a damaged pickle leads to
        raise ValueError(f"the list of its keys cannot be read: {error}") from error
    if not all(isinstance(key, str) for key in listed):
        raise ValueError("the list of its keys holds something else")
    return listed


class _Plain(pickle.Unpickler):
    """Loads lists of strings and nothing that could do something."""

    def find_class(self, module: str, name: str) -> Any:
        """Nothing has to be imported for such a list."""
        raise pickle.UnpicklingError(f"the list of its keys wants {module}.{name}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[-1]), walk="--walk" in sys.argv))
