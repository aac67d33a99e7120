"""Whose predictions are wanted: runs, each with a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmf_win.errors import UsageError
from mmf_win.runs import checkpoints, history
from mmf_win.runs.folder import Run


@dataclass(frozen=True)
class Member:
    """One set of weights.

    Attributes:
        run: knows the model's configuration.
        checkpoint: the weights, which may be another run's.
    """

    run: Run
    checkpoint: Path

    @property
    def name(self) -> str:
        """What the user reads."""
        return f"{self.checkpoint.name} of run {self.run.id}"


def choose(save_dir: Path, runs: Sequence[str], wanted: Sequence[str]) -> list[Member]:
    """Every wanted checkpoint of every run.

    Args:
        save_dir: where runs are kept.
        runs: ids, names or folders. Without any, a checkpoint's path stands for its own run, and ``best`` and
            ``last`` for the newest.
        wanted: ``best``, ``last`` or paths.

    Raises:
        UsageError: there is no such run, or one is named twice.
        CheckpointError: there is no such checkpoint, or it is broken.
    """
    members: list[Member] = []
    names: Sequence[str | None] = runs or [None]
    for name in names:
        for which in wanted:
            own = None if name else history.owner(Path(which).expanduser().absolute())
            run = own or history.find(save_dir, name)
            members.append(Member(run, checkpoints.choose(run, which)))
    twice = next((member for member in members if members.count(member) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice.name} is named twice")
    return members
