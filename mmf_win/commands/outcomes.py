"""What to do after an attempt of a run that did not end well."""

from __future__ import annotations

from pathlib import Path

from mmf_win.console import as_typed
from mmf_win.runs import checkpoints
from mmf_win.runs.folder import Run
from mmf_win.runs.history import all_runs

_BEGIN = "the same command begins again"

# {resume}: how to resume the training, or to begin again where nothing is saved; {again}: the command for it.
_HINTS = {
    "cuda_oom": "see who else uses the GPU (nvidia-smi), or choose a smaller model",
    "host_oom": "try a smaller --batch-size, or end other programs",
    "disk": "free some space; {resume}",
    "nan": "{again} --detect-anomaly finds the operation that makes it; else begin again with a smaller "
    "optimizer.params.lr",
    "killed": "{resume}",
    "untrusted": "if you trust where the file comes from, repeat the command with --trust",
    "config": "check the KEY=VALUE overrides and the preset against MMF's configuration",
    "mmf": "mmfw doctor",
    "network": "MMF could not download what the preset needs; check the connection and try again",
    "busy": "wait until it has ended, or stop it",
}


def hint_after(outcome: str, action: str | None, run_dir: Path) -> str | None:
    """The next step, in options and commands.

    Args:
        outcome: of the attempt; see :data:`mmf_win.protocol.Outcome`.
        action: what it was to do.
        run_dir: the run's folder.
    """
    run, trains = Run(run_dir), action == "train"
    if outcome == "interrupted":
        if not trains:
            return None
        saved = any(run.checkpoints.glob("*.ckpt"))  # to read them would keep the prompt waiting
        return f"resume with: {_resume(run)}" if saved else f"nothing is saved yet; {_BEGIN}"
    hint = _HINTS.get(outcome)
    if hint is not None and "{" in hint:
        hint = _filled_in(hint, run) if trains else None
    log = f"the whole output is in {run.log}"
    return f"{hint}; {log}" if hint else log


def _filled_in(hint: str, run: Run) -> str:
    if not checkpoints.can_resume(run):
        return hint.format(resume=_BEGIN, again="the same command")
    resume = _resume(run)
    return hint.format(resume=f"{resume} resumes from the last intact checkpoint", again=resume)


def _resume(run: Run) -> str:
    """The command that resumes this very run, which need not be the newest."""
    save_dir = run.path.parent.parent
    newest = next(iter(all_runs(save_dir)), run)
    which = "last" if newest.path == run.path else run.id
    return as_typed("mmfw", "train", "--resume", which, "--save-dir", save_dir)
