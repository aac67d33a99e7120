"""The checkpoints of a run, what is in them, and which of them open. Needs no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from os import stat_result
from pathlib import Path

from mmf_win.console import Progress
from mmf_win.integrity import torch_file
from mmf_win.protocol import read_events
from mmf_win.runs.folder import Run
from mmf_win.runs.history import val_auroc
from mmf_win.upstream.checkpoint_files import counts, numbered


@dataclass(frozen=True)
class Checkpoint:
    """One name of a checkpoint.

    Attributes:
        name: its place in the run's folder of checkpoints, with ``/``.
        path: the file.
        update, epoch: when it was saved; None where it holds weights alone, or cannot be read.
        auroc: what this run's validation gave at that update, 0 to 1.
        size: bytes.
        written: seconds since the epoch.
        same_as: other names of the same bytes, which take no space of their own.
        problem: why it does not open; None when every byte of it is right.
    """

    name: str
    path: str
    update: int | None
    epoch: int | None
    auroc: float | None
    size: int
    written: float
    same_as: tuple[str, ...]
    problem: str | None


def listed(run: Run) -> list[Checkpoint]:
    """Every checkpoint of a run, each read from its first byte to its last; links are read once.

    One that goes while this looks, in a run that is being trained, is left out.
    """
    stats = dict(_existing(run.checkpoints))
    names: defaultdict[tuple[int, int], list[Path]] = defaultdict(list)
    for path, stat in stats.items():
        names[stat.st_dev, stat.st_ino].append(path)
    # The final validation is of the best checkpoint, whatever the update.
    events = [event for event in read_events(run.events) if not event.get("final")]
    scores = {event.get("update"): score for event in events if (score := val_auroc(event)) is not None}
    found = {}
    with Progress(
        "checking checkpoints", sum(stats[paths[0]].st_size for paths in names.values())
    ) as progress:
        for paths in names.values():
            problem = torch_file.problem(paths[0], progress.advance)
            counted = None if problem else counts(paths[0])
            for path in paths:
                found[path] = Checkpoint(
                    name=_name(run, path),
                    path=str(path),
                    update=counted.update if counted else None,
                    epoch=counted.epoch if counted else None,
                    auroc=scores.get(counted.update) if counted else None,
                    size=stats[path].st_size,
                    written=stats[path].st_mtime,
                    same_as=tuple(_name(run, other) for other in paths if other != path),
                    problem=problem,
                )
    return [found[path] for path in stats if found[path].problem is None or path.exists()]


def _existing(folder: Path) -> Iterator[tuple[Path, stat_result]]:
    """The files with the commonest names first."""
    for path in (*sorted(folder.glob("*.ckpt")), *numbered(folder), *sorted(folder.glob("*_final.pth"))):
        with suppress(FileNotFoundError):
            yield path, path.stat()


def _name(run: Run, path: Path) -> str:
    return path.relative_to(run.checkpoints).as_posix()
