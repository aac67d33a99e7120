"""Checkpoint files of an MMF folder: names, order and training progress. Does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmf_win.integrity import torch_file
from mmf_win.protocol import Event

#: Key of the state that mmfw adds to a checkpoint so that a resumed run gives identical results.
STATE_KEY = "mmfw"

_NUMBERED_NAME = re.compile(r"model_(\d+)\.ckpt")
_SUPERSEDED_NAME = re.compile(r"model_(\d+)_aside_\d+\.ckpt")


@dataclass(frozen=True)
class CheckpointProgress:
    """Training progress stored in a checkpoint.

    Attributes:
        update: Number of completed updates.
        epoch: Current epoch, counted from 1.
        best_update: Update of the best validation.
        best_iteration: Batch of the best validation.
        best_value: Value of the criterion that MMF monitors, at the best validation.
        has_state: The file contains the random state, which a resume restores.
        save_dir: MMF's save folder when the checkpoint was written.
    """

    update: int
    epoch: int
    best_update: int
    best_iteration: int
    best_value: float
    has_state: bool = False
    save_dir: str = ""


def read_checkpoint_progress(path: Path) -> CheckpointProgress | None:
    """Return the progress stored in a checkpoint, or ``None`` for an unreadable or weights-only file."""
    with suppress(OSError, ValueError, KeyError, TypeError, OverflowError, AttributeError):
        contents: Any = torch_file.load_plain_contents(path)
        return CheckpointProgress(
            update=int(contents["num_updates"]),
            epoch=int(contents["current_epoch"]),
            best_update=int(contents["best_update"]),
            best_iteration=int(contents["best_iteration"]),
            best_value=float(contents["best_metric_value"]),
            has_state=STATE_KEY in contents,
            save_dir=str(contents.get("config", {}).get("env", {}).get("save_dir", "")),
        )
    return None


def superseded_updates(events: Iterable[Event]) -> set[int]:
    """Return the updates whose checkpoints were superseded by resuming from an earlier checkpoint.

    An update is no longer superseded once a later attempt has saved it or a later one again.
    """
    saved: set[int] = set()
    superseded: set[int] = set()
    for event in events:
        update = event.get("update", 0)
        if event["kind"] == "checkpoint":
            saved.add(update)
            superseded = {other for other in superseded if other > update}
        elif event["kind"] == "train_started":
            superseded |= {other for other in saved if other > update}
            saved -= superseded
    return superseded


def find_superseded_checkpoints(folder: Path) -> dict[Path, int]:
    """Return the files ``models/model_<update>_aside_<n>.ckpt`` below MMF's folder with their updates.

    Each was the last checkpoint of a run until the run was resumed from an earlier one.
    """
    paths = (folder / "models").glob("model_*_aside_*.ckpt")
    return {path: int(match[1]) for path in paths if (match := _SUPERSEDED_NAME.fullmatch(path.name))}


def find_numbered_checkpoints(folder: Path) -> list[Path]:
    """Return the files ``models/model_<update>.ckpt`` below MMF's folder, newest first.

    They are sorted by time of writing first, because a run that was resumed from its best checkpoint has
    older files with higher numbers.
    """
    checkpoints = [
        (path.stat().st_mtime_ns, int(match[1]), path)
        for path in (folder / "models").glob("model_*.ckpt")
        if (match := _NUMBERED_NAME.fullmatch(path.name))
    ]
    return [path for _, _, path in sorted(checkpoints, reverse=True)]
