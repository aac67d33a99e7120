"""Builds an LMDB of region features in a process of its own, for ``mmfw features add``.

Run as ``python -m mmf_win.worker.build_features TARGET BASE FORCE FOLDER ... OUTPUT``: ``BASE`` is an LMDB to
extend, or empty; ``FORCE`` is empty or not. The file ``OUTPUT`` is JSON: what :func:`build` returns, or under
``error`` what is wrong, with its ``hint`` and its ``kind``, a class of :mod:`mmf_win.errors`.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb

from mmf_win.console import Progress
from mmf_win.errors import FeaturesConflict, Interrupted, MmfwError, ResourceError
from mmf_win.files import write_json
from mmf_win.unpacking.staging import require_space
from mmf_win.worker import feature_lmdb
from mmf_win.worker.feature_files import find_pairs, info_of, read_record, reading, regions_of, unpickled


def main(target: str, base: str, force: str, *folders_and_output: str) -> int:
    """Do it, write what was done, and return the exit code."""
    *folders, output = map(Path, folders_and_output)
    try:
        built = build(Path(target), Path(base) if base else None, folders, force=bool(force))
    except MmfwError as error:
        built = {"error": str(error), "hint": error.hint, "kind": type(error).__name__}
    except (OSError, lmdb.Error) as error:
        built = {"error": f"{target}: {error}", "hint": None, "kind": ResourceError.__name__}
    except KeyboardInterrupt:
        return Interrupted.exit_code
    write_json(output, built)
    return 0


def build(target: Path, base: Path | None, folders: Sequence[Path], *, force: bool) -> dict[str, Any]:
    """Write ``target`` with the records of ``base`` and those of the files in ``folders``.

    Where ``base`` has all of these, ``target`` holds nothing of use.

    Returns:
        ``keys`` of the LMDB; ``given``, those in the folders; how many of these were ``added``, ``replaced``
        or the ``same``; of them, how many ``numbers`` describe a region, the smallest and the largest number
        of ``regions``, and the keys ``without_info``.

    Raises:
        DatasetError: a file cannot be used.
        FeaturesConflict: there are other features under a key, or of another detector.
        ResourceError: there is not enough room; nothing was written.
    """
    pairs = find_pairs(folders, force=force)
    files = [file for path in pairs.values() for file in (path, info_of(path)) if file.is_file()]
    size = feature_lmdb.least_map(len(pairs), sum(file.stat().st_size for file in files))
    done = {"added": 0, "replaced": 0, "same": 0}
    numbers: set[int] = set()
    regions: set[int] = set()
    changed: set[str] = set()
    with ExitStack() as stack:
        known: list[str] = []
        old: Any = None
        if base:
            known = feature_lmdb.read_keys(base, walk=False)
            options = {"readonly": True, "lock": False, "readahead": False}
            environment = stack.enter_context(lmdb.open(str(base), **options))
            old = stack.enter_context(environment.begin())
            size += (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
            with reading(base):
                kept = (unpickled(old.get(key.encode())) for key in known if key not in pairs)
                numbers.update(record["features"].shape[-1] for record in islice(kept, 1))
        require_space(target, size)
        bar = stack.enter_context(Progress("Writing region features", len({*known, *pairs}), "image"))

        def records() -> Iterator[tuple[str, bytes]]:
            # The files first: what is wrong with one shows before a large LMDB was copied.
            for key, path in pairs.items():
                record = read_record(path, key)
                width = record["features"].shape[-1]
                numbers.add(width)
                if len(numbers) > 1:
                    raise FeaturesConflict(
                        f"{path}: {width} numbers describe a region, and {min(numbers - {width})} in others; "
                        "one LMDB holds the features of one detector"
                    )
                regions.add(regions_of(record["features"]))
                before, after = old.get(key.encode()) if old else None, pickle.dumps(record)
                what = "added" if before is None else "same" if before == after else "replaced"
                if what == "replaced" and not force:
                    raise FeaturesConflict(f"{path}: {base} has other features of {key}")
                done[what] += 1
                if what != "same":
                    changed.add(key)
                    yield key, after
                bar.advance(1)
            for key in known if changed else ():
                if key not in changed:
                    yield key, old.get(key.encode())
                    bar.advance(key not in pairs)

        written = feature_lmdb.write(target, records(), size)
    return {
        **done,
        "keys": written or known,
        "given": list(pairs),
        "numbers": numbers.pop(),
        "regions": (min(regions), max(regions)),
        "without_info": [key for key, path in pairs.items() if not info_of(path).is_file()],
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
