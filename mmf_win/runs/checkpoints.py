"""Which checkpoint of a run to use. Looks at files only, so that no torch is needed to choose."""

from __future__ import annotations

import logging
from pathlib import Path

from mmf_win.console import Progress
from mmf_win.errors import CheckpointError
from mmf_win.files import share
from mmf_win.integrity import torch_file
from mmf_win.runs.folder import Run
from mmf_win.upstream.checkpoint_files import counts, numbered

_log = logging.getLogger(__name__)


def problem(path: Path) -> str | None:
    """Why ``path`` is not an intact checkpoint; None when it is. Every byte is checked."""
    total = path.stat().st_size if path.is_file() else 0
    with Progress(f"checking {path.name}", total) as progress:
        return torch_file.problem(path, progress.advance)


def choose(run: Run, wanted: str) -> Path:
    """The checkpoint that ``best``, ``last`` or a path stands for.

    A broken ``last`` falls back to the newest intact one, and ``best`` to ``last`` in a run too short to have
    a best; a note names what is passed over.

    Raises:
        CheckpointError: there is none, or the only ones are broken.
    """
    if wanted not in ("best", "last"):
        hint = "give best, last, or the file of an intact checkpoint"
        return checked(Path(wanted).expanduser().absolute(), hint)
    broken: list[tuple[Path, str]] = []
    for path in _candidates(run, wanted):
        reason = problem(path)
        if reason is None:
            for file, why in broken:
                _log.warning("%s: %s; using %s instead", file, why, path.name)
            return path
        broken.append((path, reason))
    if broken:
        file, why = broken[0]
        raise CheckpointError(f"{file}: {why}", hint="no other checkpoint of this run is intact")
    raise CheckpointError(
        f"run {run.id} has no checkpoint", hint=f"training makes one; see {run.log} for how the run went"
    )


def can_resume(run: Run) -> bool:
    """Whether the run has an intact checkpoint."""
    return any(problem(path) is None for path in _candidates(run, "last"))


def checked(path: Path, hint: str = "give the file of an intact checkpoint") -> Path:
    """``path`` itself.

    Args:
        path: the file.
        hint: what to do where it is none.

    Raises:
        CheckpointError: it cannot be an intact checkpoint.
    """
    reason = problem(path)
    if reason:
        raise CheckpointError(f"{path}: {reason}", hint=hint)
    return path


def share_best(checkpoint: Path, run: Run) -> None:
    """Give a new run that starts from ``checkpoint``, which is intact, the best that was reached by then.

    So a run that never gets better still predicts with its best. One that was reached later, or is not
    intact, is of no use; the new run then finds its own.
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
