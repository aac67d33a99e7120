"""Zip files in the layout of torch, written without torch."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any


def write_torch_zip(path: Path, contents: Any, storage: bytes = bytes(100_000)) -> Path:
    """Write a file with a pickled object and one storage, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(contents))
        archive.writestr("model/data/0", storage)
        archive.writestr("model/version", b"3\n")
    return path


def write_checkpoint(
    path: Path, update: int, epoch: int = 1, best_update: int | None = None, save_dir: str = ""
) -> Path:
    """Write a checkpoint like those of MMF, readable without torch; by default its own update is the best one."""
    counts = {"num_updates": update, "current_epoch": epoch}
    config = {"env": {"save_dir": save_dir}}
    best_update = update if best_update is None else best_update
    best = {"best_update": best_update, "best_iteration": best_update, "best_metric_value": 0.5}
    return write_torch_zip(path, {**counts, **best, "model": {}, "config": config})
