"""The checkpoints of an MMF folder: their names, their order, and the counts in them. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmf_win.integrity import torch_file
from mmf_win.protocol import Event

#: The key of what mmfw adds to a checkpoint, to resume as if nothing had happened.
STATE_KEY = "mmfw"

_NUMBERED_NAME = re.compile(r"model_(\d+)\.ckpt")
_SUPERSEDED_NAME = re.compile(r"model_(\d+)_aside_\d+\.ckpt")


@dataclass(frozen=True)
class CheckpointProgress:
    """How far training was when a checkpoint was saved, and what was best until then.

    Epochs count from 1. The best validation, by the criterion that MMF watches, has its score as
    ``best_value``; it was after ``best_update`` updates, or ``best_iteration`` batches. With ``has_state``,
    the random state is in it, which a resume restores. ``save_dir`` is MMF's, in which it was saved.
    """

    update: int
    epoch: int
    best_update: int
    best_iteration: int
    best_value: float
    has_state: bool = False
    save_dir: str = ""


def read_checkpoint_progress(path: Path) -> CheckpointProgress | None:
    """The counts in a checkpoint; None in a file that cannot be read or holds weights only."""
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
    """The updates whose checkpoints a resume from an earlier one has set aside, until it is as far itself."""
    saved: set[int] = set()
    aside: set[int] = set()
    for event in events:
        update = event.get("update", 0)
        if event["kind"] == "checkpoint":
            saved.add(update)
            aside = {other for other in aside if other > update}
        elif event["kind"] == "train_started":
            aside |= {other for other in saved if other > update}
            saved -= aside
    return aside


def find_superseded_checkpoints(folder: Path) -> dict[Path, int]:
    """The files ``models/model_<update>_aside_<n>.ckpt`` below MMF's folder, and their updates.

    Each was a run's last until it went on from an earlier one.
    """
    found = (folder / "models").glob("model_*_aside_*.ckpt")
    return {path: int(match[1]) for path in found if (match := _SUPERSEDED_NAME.fullmatch(path.name))}


def find_numbered_checkpoints(folder: Path) -> list[Path]:
    """The files ``models/model_<update>.ckpt`` below MMF's folder, the newest first.

    A run that went back to its best has older ones with higher numbers, so the time of writing comes first.
    """
    found = [
        (path.stat().st_mtime_ns, int(match[1]), path)
        for path in (folder / "models").glob("model_*.ckpt")
        if (match := _NUMBERED_NAME.fullmatch(path.name))
    ]
    return [path for _, _, path in sorted(found, reverse=True)]
