"""Region features in MMF's format: an LMDB with one pickled dictionary an image.

The format is that of MMF's ``tools/scripts/features/lmdb_conversion.py``, read back by its
``LMDBFeatureReader``: under ``keys`` the pickled list of all keys, and under each key, which is the image's
file name without its suffix, ``feature_path``, ``features`` (regions × 2048, float32), ``bbox`` (regions × 4,
in pixels), ``num_boxes``, ``objects``, ``cls_prob`` (regions × 1601), ``image_width`` and ``image_height``.

The parent reads one in a process of its own, since a truncated file kills whoever maps it:
``python -m mmf_win.features.lmdb_file FOLDER keys|records``, where :func:`print_answer` prints the keys of
the images that it has features of. With ``records``, every record is read, too.
"""

from __future__ import annotations

import mmap
import pickle
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import lmdb

from mmf_win.console import Progress, print_json
from mmf_win.errors import MmfwError, ResourceError, StoppedByUserError
from mmf_win.features.safe_pickle import load_pickle, require_features, translate_pickle_errors


def min_map_size(record_count: int, total_bytes: int) -> int:
    """The size of the map for so many records that take so many bytes.

    On Windows the file is as large as the map from the start, so the map is no larger than need be: values
    are rounded up to pages, and the rest is for keys and bookkeeping.
    """
    return total_bytes + record_count * 2 * mmap.PAGESIZE + (1 << 20)


def write(folder: Path, records: Iterable[tuple[str, bytes]], map_size: int) -> list[str]:
    """Write an LMDB, and return its keys; only one record is in memory at a time.

    The folder must not exist. The ``size`` is that of the map, as :func:`min_map_size` has it. Raises
    lmdb.Error where the disk is full, for example.
    """
    folder.mkdir(parents=True)
    keys: list[str] = []
    # create=True would make the folder, on Windows under a name in the ANSI code page.
    with lmdb.open(str(folder), map_size=map_size, create=False, lock=False, sync=False) as environment:
        for key, record in records:
            with environment.begin(write=True) as transaction:
                transaction.put(key.encode(), record)
            keys.append(key)
        with environment.begin(write=True) as transaction:
            transaction.put(b"keys", pickle.dumps([key.encode() for key in keys]))
        environment.sync(True)
    return keys


def read_keys(folder: Path, *, check_records: bool) -> list[str]:
    """The keys of the images in an LMDB, a folder or ``data.mdb``, as MMF's ``LMDBFeatureReader`` finds them.

    With ``records``, every record is read, too. Raises DamagedFeatures where it is no LMDB, is truncated, or
    lacks or holds what it should not, and HostileFeatures where what is in it could run code.
    """
    data = folder / "data.mdb" if folder.is_dir() else folder
    with (
        translate_pickle_errors(folder, damage=(lmdb.Error, OSError, ValueError)),
        _open_lmdb(folder) as environment,
    ):
        needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if (there := data.stat().st_size) < needed:
            raise ValueError(f"{there} of {needed} bytes are there")
        with environment.begin(buffers=True) as transaction:
            listed = transaction.get(b"keys")
            if listed is None:
                raise ValueError("the list of its keys is missing")
            with translate_pickle_errors(folder, "the list of its keys: "):
                plain = load_pickle(listed)
            if not (isinstance(plain, Iterable) and all(isinstance(key, (str, bytes)) for key in plain)):
                raise ValueError("the list of its keys holds something else")
            keys: list[str] = [key.decode() if isinstance(key, bytes) else key for key in plain]
            if check_records:
                with Progress("Reading region features", environment.stat()["entries"], "image") as progress:
                    of_images = set(keys)
                    for key, value in transaction.cursor():
                        name = bytes(key).decode("utf-8", "replace")
                        with translate_pickle_errors(folder, f"the record {name}: "):
                            record = load_pickle(value)
                            if name in of_images:
                                require_features(record)
                        progress.advance(1)
            absent = next((key for key in keys if transaction.get(key.encode()) is None), None)
            if absent is not None:
                raise ValueError(f"the record {absent} is listed and missing")
    return keys


def _open_lmdb(folder: Path) -> lmdb.Environment:
    try:
        return lmdb.open(str(folder), readonly=True, lock=False, subdir=folder.is_dir())
    except lmdb.MemoryError as error:  # no room for the map; it is an lmdb.Error, as damage is
        raise MemoryError(str(error)) from None


def print_answer(target: Path, compute: Callable[[], object]) -> int:
    """Print JSON, and return the exit code of this process.

    It has under ``answer`` what ``make`` returns of the LMDB, or under ``error`` what is wrong, what that is
    ``about``, its ``hint`` and its ``kind``, a class of :mod:`mmf_win.errors`.
    """
    try:
        found = {"answer": compute()}
    except MmfwError as error:
        kind = type(error).__name__
        found = {"error": error.reason, "about": error.prefix, "hint": error.hint, "kind": kind}
    except (OSError, lmdb.Error, MemoryError) as error:
        text = str(error) or "not enough memory"
        found = {"error": text, "about": f"{target}:", "hint": None, "kind": ResourceError.__name__}
    except KeyboardInterrupt:
        return StoppedByUserError.exit_code
    print_json(found, on_one_line=True)
    return 0


def main(folder: Path, mode: str) -> int:
    """Read the keys for the parent."""
    return print_answer(folder, lambda: read_keys(folder, check_records=mode == "records"))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
