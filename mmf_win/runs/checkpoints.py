"""Which checkpoint of a run to use. Looks at files only, so that no torch is needed to choose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mmf_win.console import Progress, say
from mmf_win.errors import CheckpointError
from mmf_win.files import share
from mmf_win.integrity import torch_file
from mmf_win.runs.folder import Run
from mmf_win.upstream.checkpoint_files import counts, numbered


@dataclass(frozen=True)
class Choice:
    """A checkpoint to use.

    Attributes:
        path: the file.
        passed_over: files that would have come first but are broken.
    """

    path: Path
    passed_over: tuple[Path, ...] = ()


def problem(path: Path) -> str | None:
    """Why ``path`` is not a whole checkpoint; None when it is. Every byte is checked."""
    total = path.stat().st_size if path.is_file() else 0
    with Progress(f"checking {path.name}", total) as progress:
        return torch_file.problem(path, progress.advance)


def choose(run: Run, wanted: str) -> Choice:
    """The checkpoint that ``best``, ``last`` or a path stands for.

    A broken ``last`` falls back to the newest whole one, and ``best`` to ``last`` in a run that was too short
    to have a best.

    Raises:
        CheckpointError: there is none, or the only ones are broken.
    """
    if wanted not in ("best", "last"):
        hint = "give best, last, or the file of an intact checkpoint"
        return Choice(checked(Path(wanted).expanduser().absolute(), hint))
    broken: list[Path] = []
    for path in _candidates(run, wanted):
        if problem(path) is None:
            return Choice(path, tuple(broken))
        broken.append(path)
    if broken:
        raise CheckpointError(
            f"{broken[0]}: {problem(broken[0])}", hint="no other checkpoint of this run is whole"
        )
    raise CheckpointError(
        f"run {run.id} has no checkpoint", hint=f"`mmfw train` makes one; see {run.log} for how the run went"
    )


def announced(choice: Choice) -> Path:
    """The chosen file, once the user knows which were passed over."""
    for broken in choice.passed_over:
        say(f"{broken}: {problem(broken)}; using {choice.path.name} instead")
    return choice.path


def checked(path: Path, hint: str = "give the file of an intact checkpoint") -> Path:
    """``path`` itself.

    Args:
        path: the file.
        hint: what to do where it is none.

    Raises:
        CheckpointError: it cannot be a whole checkpoint.
    """
    reason = problem(path)
    if reason:
        raise CheckpointError(f"{path}: {reason}", hint=hint)
    return path


def carry_best(checkpoint: Path, run: Run) -> None:
    """Give a new run that begins from ``checkpoint``, which is whole, the best that had been reached by then.

    So a run that never gets better still predicts with its best. One that was reached later, or is not whole,
    is of no use; the new run then finds its own.
    """
    here = counts(checkpoint)
    for best in (checkpoint, checkpoint.parent / "best.ckpt", checkpoint.parent.parent / "best.ckpt"):
        there = counts(best)
        is_it = here and there and there.update == here.best_update
        if is_it and (best == checkpoint or problem(best) is None):
            run.checkpoints.mkdir(exist_ok=True)
            share(best, run.checkpoints / "best.ckpt")
            return


def _candidates(run: Run, wanted: str) -> list[Path]:
    """Existing files, the preferred one first."""
    folder = run.checkpoints
    last = [folder / "current.ckpt", *numbered(folder)]
    best = folder / "best.ckpt"
    ordered = [best, *last] if wanted == "best" else [*last, best]
    return [path for path in ordered if path.exists()]
