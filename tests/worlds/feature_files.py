"""Region features as MMF's extraction scripts write them, with the real numpy."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def make_info(regions: int = 10, *, classes: int = 1600, seed: int = 0) -> dict[str, Any]:
    """Return the contents that ``extract_features_vmb.py`` writes to ``NAME_info.npy``."""
    import numpy as np

    random = np.random.default_rng(seed)
    corners = random.uniform(0, 30, (regions, 2))
    return {
        "bbox": np.hstack([corners, corners + 20]).astype(np.float32),
        "num_boxes": regions,
        "objects": random.integers(0, classes, regions),
        "cls_prob": random.dirichlet(np.ones(classes), regions).astype(np.float32),
        "image_width": 64,
        "image_height": 48,
    }


def write_pair(
    folder: Path, name: str, *, regions: int = 10, feature_size: int = 2048, seed: int = 0, **changes: Any
) -> None:
    """Write ``NAME.npy`` and ``NAME_info.npy`` as ``extract_features_vmb.py`` does, with changes to the dictionary."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    np.save(folder / f"{name}.npy", random.standard_normal((regions, feature_size), dtype=np.float32))
    np.save(folder / f"{name}_info.npy", {**make_info(regions, seed=seed), **changes})


def write_pairs(folder: Path, names: Iterable[str], **options: Any) -> Path:
    """Write a pair of files for each name and return the folder."""
    for seed, name in enumerate(names):
        write_pair(folder, name, seed=seed, **options)
    return folder


def export_lmdb_pairs(lmdb_folder: Path, folder: Path) -> Path:
    """Write the records of an LMDB to files, as ``lmdb_conversion.py --mode extract`` does, and return the folder."""
    import numpy as np

    folder.mkdir(parents=True)
    for key, record in read_records(lmdb_folder).items():
        np.save(folder / f"{key}.npy", record.pop("features"))
        np.save(folder / f"{key}_info.npy", {**record, "image_id": key})
    return folder


def read_records(lmdb_folder: Path) -> dict[str, dict[str, Any]]:
    """Return all records by key, read as MMF does: first the list of keys, then the record of each key."""
    return {key: pickle.loads(record) for key, record in read_raw_records(lmdb_folder).items()}


def read_raw_records(lmdb_folder: Path) -> dict[str, bytes]:
    """Return the pickled records by key."""
    import lmdb

    with lmdb.open(str(lmdb_folder), readonly=True, lock=False) as env, env.begin() as transaction:
        keys = pickle.loads(transaction.get(b"keys"))
        assert len(keys) == env.stat()["entries"] - 1
        return {key.decode(): transaction.get(key) for key in keys}
