"""Region features in MMF's format: an LMDB with one pickled dictionary per image.

The format is that of MMF's ``tools/scripts/features/lmdb_conversion.py``, which MMF reads with its
``LMDBFeatureReader``. The key ``keys`` has the pickled list of all keys. The key of an image is its file name
without suffix; its record has ``feature_path``, ``features`` (float32 [regions, 2048]), ``bbox``
([regions, 4], in pixels), ``num_boxes``, ``objects``, ``cls_prob`` ([regions, 1601]), ``image_width`` and
``image_height``.

A truncated file kills any process that maps it, so the parent reads it in a separate process,
``python -m mmf_win.features.lmdb_file FOLDER keys|records``, which prints the keys of all images with
:func:`print_answer`. With ``records``, it also reads every record.
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
    """Return a map size that is sufficient for records, in bytes."""
    # On Windows the file has the size of the map from the start, so the map should not be larger than needed.
    # Values are rounded up to pages; the rest is for keys and metadata.
    return total_bytes + record_count * 2 * mmap.PAGESIZE + (1 << 20)


def write_lmdb(folder: Path, records: Iterable[tuple[str, bytes]], map_size: int) -> list[str]:
    """Write an LMDB with only one record in memory at a time.

    Args:
        folder: The LMDB folder; must not exist.
        records: Pairs of key and pickled record.
        map_size: Maximum size of the file, see :func:`min_map_size`.

    Returns:
        The keys.

    Raises:
        lmdb.Error: The LMDB cannot be written, for example because the disk is full.
    """
    folder.mkdir(parents=True)
    keys: list[str] = []
    # create=True would create the folder, on Windows with its name in the ANSI code page.
    with lmdb.open(str(folder), map_size=map_size, create=False, lock=False, sync=False) as environment:
        for key, record in records:
            with environment.begin(write=True) as transaction:
                transaction.put(key.encode(), record)
            keys.append(key)
        with environment.begin(write=True) as transaction:
            transaction.put(b"keys", pickle.dumps([key.encode() for key in keys]))
        environment.sync(force=True)
    return keys


def read_keys(folder: Path, *, check_records: bool) -> list[str]:
    """Return the keys of the images in an LMDB like MMF's ``LMDBFeatureReader`` does.

    Args:
        folder: The LMDB folder or its ``data.mdb``.
        check_records: Also read and check every record.

    Returns:
        The keys.

    Raises:
        DamagedFeaturesError: It is no LMDB, is truncated, or has missing or invalid records.
        UnsafeFeaturesError: Its contents could run code.
    """
    with translate_pickle_errors(folder, damage=(lmdb.Error, OSError, ValueError)), _open_lmdb(folder) as environment:
        return _read_keys(folder, environment, check_records=check_records)


def _read_keys(folder: Path, environment: lmdb.Environment, *, check_records: bool) -> list[str]:
    data = folder / "data.mdb" if folder.is_dir() else folder
    expected_size = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if (actual_size := data.stat().st_size) < expected_size:
        raise ValueError(f"truncated ({actual_size} of {expected_size} bytes)")
    with environment.begin(buffers=True) as transaction:
        stored_keys = transaction.get(b"keys")
        if stored_keys is None:
            raise ValueError("key list is missing")
        with translate_pickle_errors(folder, "key list: "):
            key_list = load_pickle(stored_keys)
        if not (isinstance(key_list, Iterable) and all(isinstance(key, (str, bytes)) for key in key_list)):
            raise ValueError("key list is not a list of names")
        keys: list[str] = [key.decode() if isinstance(key, bytes) else key for key in key_list]
        if check_records:
            with Progress("Reading region features", environment.stat()["entries"], "image") as progress:
                image_keys = set(keys)
                for key, value in transaction.cursor():
                    name = bytes(key).decode("utf-8", "replace")
                    with translate_pickle_errors(folder, f"record {name}: "):
                        record = load_pickle(value)
                        if name in image_keys:
                            require_features(record)
                    progress.advance(1)
        missing_key = next((key for key in keys if transaction.get(key.encode()) is None), None)
        if missing_key is not None:
            raise ValueError(f"record {missing_key} is missing")
    return keys


def _open_lmdb(folder: Path) -> lmdb.Environment:
    try:
        return lmdb.open(str(folder), readonly=True, lock=False, subdir=folder.is_dir())
    except lmdb.MemoryError as error:  # an lmdb.Error, too, but the file is not damaged
        raise MemoryError(str(error)) from None


def print_answer(target: Path, compute: Callable[[], object]) -> int:
    """Print the result of a function as JSON for the parent process.

    The JSON has either ``answer``, or ``error`` with ``about`` (the file), ``hint`` and ``kind``, the name of
    a class in :mod:`mmf_win.errors`.

    Args:
        target: The LMDB, for error messages.
        compute: Returns the answer.

    Returns:
        The exit code of this process.
    """
    try:
        answer = {"answer": compute()}
    except MmfwError as error:
        kind = type(error).__name__
        answer = {"error": error.reason, "about": error.prefix, "hint": error.hint, "kind": kind}
    except (OSError, lmdb.Error, MemoryError) as error:
        text = str(error) or "not enough memory"
        answer = {"error": text, "about": f"{target}:", "hint": None, "kind": ResourceError.__name__}
    except KeyboardInterrupt:
        return StoppedByUserError.exit_code
    print_json(answer, on_one_line=True)
    return 0


def main(folder: Path, mode: str) -> int:
    """Read the keys and print them for the parent process."""
    return print_answer(folder, lambda: read_keys(folder, check_records=mode == "records"))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
