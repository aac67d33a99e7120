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
from mmf_win.runs.history import all_runs

_BEGIN = "the same command begins again"

_ENDINGS: dict[Outcome, tuple[type[MmfwError], str | None]] = {
    "cuda_oom": (TrainingError, "see who else uses the GPU (nvidia-smi), or choose a smaller model"),
    "host_oom": (ResourceError, "try a smaller --batch-size, or end other programs"),
    "disk": (ResourceError, "free some space; {on}"),
    "nan": (
        TrainingError,
        "{again} --detect-anomaly finds the operation that makes it; else begin again with a smaller "
        "optimizer.params.lr",
    ),
    "killed": (TrainingError, "{on}"),
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
    if end.outcome == "interrupted":
        saved = any(run.checkpoints.glob("*.ckpt"))  # to read them would keep the prompt waiting
        again = f"go on with: {_resume(run)}" if saved else f"nothing is saved yet; {_BEGIN}"
        return Interrupted(message, hint=again if action == "train" else None)
    kind, hint = _ENDINGS.get(end.outcome, (TrainingError, None))
    if end.outcome == "internal" and end.where:
        message += f" (at {end.where})"
    if hint is not None and "{" in hint:
        hint = _filled_in(hint, run) if action == "train" else None
    log = f"the whole output is in {run.log}"
    hint = end.hint or hint
    return kind(message, hint=f"{hint}; {log}" if hint else log)


def _filled_in(hint: str, run: Run) -> str:
    if _can_go_on(run):
        resume = _resume(run)
        return hint.format(on=f"{resume} goes on from the last whole checkpoint", again=resume)
    return hint.format(on=_BEGIN, again="the same command")


def _resume(run: Run) -> str:
    """The command that goes on with this very run, which need not be the newest."""
    save_dir = run.path.parent.parent
    newest = next(iter(all_runs(save_dir)), run)
    which = "last" if newest.path == run.path else run.id
    return as_typed("mmfw", "train", "--resume", which, "--save-dir", save_dir)


def _can_go_on(run: Run) -> bool:
    try:
        checkpoints.choose(run, "last")
    except CheckpointError:
        return False
    return True
