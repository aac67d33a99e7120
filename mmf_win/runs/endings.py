"""What an attempt's ending is to the user: an error with an exit code and a next step."""

from __future__ import annotations

from mmf_win.console import as_typed
from mmf_win.errors import (
    CheckpointError,
    DataError,
    Interrupted,
    MmfError,
    MmfwError,
    ResourceError,
    TrainingError,
    UsageError,
)
from mmf_win.protocol import Action, Exit, Outcome
from mmf_win.runs import checkpoints
from mmf_win.runs.folder import Run

_ENDINGS: dict[Outcome, tuple[type[MmfwError], str | None]] = {
    "cuda_oom": (TrainingError, "see who else uses the GPU (nvidia-smi), or choose a smaller model"),
    "host_oom": (ResourceError, "try a smaller --batch-size, or end other programs"),
    "disk": (ResourceError, "free some space; {resume} goes on from the last whole checkpoint"),
    "nan": (
        TrainingError,
        "{again} finds the operation that makes it; else try a smaller optimizer.params.lr",
    ),
    "killed": (TrainingError, "{resume} goes on from the last checkpoint"),
    "data": (DataError, None),
    "checkpoint": (CheckpointError, None),
    "config": (UsageError, "check the KEY=VALUE words and the preset against MMF's configuration"),
    "mmf": (MmfError, "mmfw doctor"),
    "network": (
        MmfError,
        "MMF could not download what the preset needs; see to the connection and try again",
    ),
    "busy": (UsageError, "wait until it has ended, or stop it"),
}


def as_error(end: Exit, run: Run, action: Action) -> MmfwError:
    """The ending as an error whose class gives the exit code."""
    message = end.message or end.outcome
    resume = as_typed("mmfw", "train", "--resume", "last", "--save-dir", run.path.parent.parent)
    if end.outcome == "interrupted":
        saved = any(run.checkpoints.glob("*.ckpt"))  # to read them would keep the prompt waiting
        again = f"go on with: {resume}" if saved else "nothing is saved yet; the same command begins again"
        return Interrupted(message, hint=again if action == "train" else None)
    kind, hint = _ENDINGS.get(end.outcome, (TrainingError, None))
    if end.outcome == "internal" and end.where:
        message += f" (at {end.where})"
    hint = end.hint or hint
    log = f"the whole output is in {run.log}"
    if hint is None or (action == "predict" and "{" in hint):
        return kind(message, hint=log)
    again = f"{resume} --detect-anomaly" if _can_go_on(run) else "the same command with --detect-anomaly"
    resume = resume if _can_go_on(run) else "the same command"
    return kind(message, hint=f"{hint.format(resume=resume, again=again)}; {log}")


def _can_go_on(run: Run) -> bool:
    try:
        checkpoints.choose(run, "last")
    except CheckpointError:
        return False
    return True
