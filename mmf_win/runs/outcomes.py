"""How an attempt ended, the error that this is to the user, and the command that goes on from there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from mmf_win import errors
from mmf_win.console import format_command
from mmf_win.files import read_tail
from mmf_win.protocol import AttemptOutcome, AttemptRequest, OutcomeKind, read_events
from mmf_win.protocol.attempt import CheckTask
from mmf_win.runs import checkpoints
from mmf_win.runs.folder import Run
from mmf_win.runs.history import RunRecord, attempt_start_event
from mmf_win.runs.lookup import list_runs
from mmf_win.signals import STOP_SIGNALS
from mmf_win.supervise import ChildExit

# All others are errors of training.
_ERROR_CLASSES: dict[OutcomeKind, type[errors.MmfwError]] = {
    "interrupted": errors.StoppedByUserError,
    "host_oom": errors.ResourceError,
    "disk": errors.ResourceError,
    "data": errors.DataError,
    "checkpoint": errors.CheckpointError,
    "untrusted": errors.CheckpointError,
    "config": errors.UsageError,
    "mmf": errors.MmfEnvironmentError,
    "network": errors.MmfEnvironmentError,
}

_STOP_SIGNAL_CODES = {
    -number for number in STOP_SIGNALS
}  # sent to every process, before the worker can handle it

_OUT_OF_MEMORY_PATTERN = re.compile(
    rb"std::bad_alloc|failed to map segment|MemoryError|[Cc]annot allocate memory"
)

_START_OVER_HINT = "the same command begins again"

# {resume}: how to resume the training, or to begin again where nothing is saved; {again}: the command for it.
_HINTS = {
    "cuda_oom": "see who else uses the GPU (nvidia-smi), or choose a smaller model",
    "host_oom": "try a smaller --batch-size, or end other programs",
    "disk": "free some space; {resume}",
    "nan": "{again} --detect-anomaly finds the operation that makes it; else begin again with a smaller "
    "optimizer.params.lr",
    "nan of an operation": "begin again with a smaller optimizer.params.lr",
    "nan in fp16": "fp16 ends at 65,504: {again} --precision fp32 goes further",
    "killed": "{resume}",
    "untrusted": "if you trust where the file comes from, repeat the command with --trust",
    "config": "check the KEY=VALUE overrides and the preset against MMF's configuration",
    "mmf": "mmfw doctor",
    "network": "MMF could not download what the preset needs; check the connection and try again",
}


def determine_outcome(
    attempt: AttemptRequest, child_exit: ChildExit, *, memory_ran_out: bool
) -> AttemptOutcome:
    """What the worker said about its end, or else what its death tells; saved where it is not what it said.

    ``memory_ran_out``: the system killed a process meanwhile because it did.
    """
    recorded = None
    with suppress(errors.DataError):  # one that cannot be read says nothing
        recorded = AttemptOutcome.load(attempt.folder.outcome_file)
    outcome = recorded or _outcome_of_death(attempt, child_exit, memory_ran_out)
    if outcome.kind == "killed" and memory_ran_out:
        outcome = AttemptOutcome("host_oom", "memory ran out, and the system killed a process")
    if child_exit.stop_requested and outcome.kind in ("cuda_oom", "host_oom"):
        # Whoever asked for the prompt must not get another attempt.
        outcome = AttemptOutcome("interrupted", f"stopped; memory ran out meanwhile ({outcome.message})")
    if outcome is not recorded:
        outcome.record(attempt)
    return outcome


def outcome_error(
    outcome: AttemptOutcome, attempt: AttemptRequest, output_hint: str | None = None
) -> errors.MmfwError:
    """Return the outcome of an attempt as an error whose class gives the exit code, with what to do next.

    Args:
        end: the outcome.
        asked: the attempt.
        output: the sentence of the hint about the output, if not that it is in the log.
    """
    if output_hint is None:
        output_hint = (
            "" if attempt.profile_updates else f"the whole output is in {attempt.log}"
        )  # a profile moves it
        if isinstance(attempt.task, CheckTask):
            output_hint = "`mmfw train` keeps the whole output"
    message = outcome.message or outcome.kind
    if outcome.kind == "internal" and outcome.source_location:
        message += f" (at {outcome.source_location})"
    hint = _outcome_hint(outcome.kind, attempt, output_hint)
    if outcome.hint:
        # Of "internal" it is only where the output is.
        next_step = _outcome_hint("killed" if outcome.kind == "disk" else "internal", attempt, output_hint)
        hint = "; ".join(filter(None, (outcome.hint, next_step)))
    return _ERROR_CLASSES.get(outcome.kind, errors.TrainingError)(message, hint=hint, log=attempt.log)


def _outcome_hint(kind: str, attempt: AttemptRequest, output_hint: str) -> str | None:
    run, resumes = Run(attempt.run_dir), attempt.is_training and not attempt.discards_weights
    resumes = resumes and not attempt.train_task.node_rank  # the first machine keeps the run
    if kind == "interrupted":
        if not resumes:
            return None
        is_saved = any(run.checkpoints.glob("*.ckpt"))  # to read them would keep the prompt waiting
        return (
            f"resume with: {resume_command(run)}" if is_saved else f"nothing is saved yet; {_START_OVER_HINT}"
        )
    if kind == "nan" and (attempt_start_event(read_events(attempt.events)) or {}).get("precision") == "fp16":
        kind = "nan in fp16"
    elif kind == "nan" and attempt.settings.get("training", {}).get("detect_anomaly"):
        kind = "nan of an operation"
    hint = _HINTS.get(kind, "")
    if "{again}" in hint and not resumes:
        hint = ""
    elif "{" in hint and resumes and checkpoints.can_resume(run):
        command = resume_command(run)
        hint = hint.format(resume=f"{command} resumes from the last intact checkpoint", again=command)
    else:
        hint = hint.format(resume=_START_OVER_HINT, again="the same command")
    return "; ".join(filter(None, (hint, output_hint)))


def resume_command(run: Run) -> str:
    """The command that resumes this very run, which need not be the newest."""
    save_dir = run.path.parent.parent
    newest = next(iter(list_runs(save_dir)), run)
    run_spec = "last" if newest.path == run.path else run.id
    return format_command("mmfw", "train", "--resume", run_spec, "--save-dir", save_dir)


def intact_checkpoint_hint(run: Run, saved_checkpoints: Iterable[checkpoints.SavedCheckpoint]) -> str | None:
    """Which checkpoint of a run is the newest intact one, and the command that goes on; None without one."""
    resumable = (
        checkpoint for checkpoint in saved_checkpoints if checkpoint.update is not None
    )  # not weights alone
    newest = max(resumable, key=lambda checkpoint: checkpoint.written, default=None)
    if newest is None:
        return None
    advice = f"`{resume_command(run)}` resumes from what is intact"
    with suppress(errors.DataError):
        summary = RunRecord.read(run).summary
        if summary.state == "done" and summary.updates == newest.update:  # nothing is left to train
            predict = format_command("mmfw", "predict", run.id, "--save-dir", run.path.parent.parent)
            advice = f"`{predict}` predicts with what is intact"
    return f"the newest intact one is {newest.name}; {advice}"


def _outcome_of_death(attempt: AttemptRequest, child_exit: ChildExit, memory_ran_out: bool) -> AttemptOutcome:
    if child_exit.killed or (child_exit.stop_requested and child_exit.exit_code in _STOP_SIGNAL_CODES):
        return AttemptOutcome(
            "interrupted", "ended at once, or for lack of progress; updates not yet saved are lost"
        )
    if child_exit.exit_code == -9 and memory_ran_out:
        return AttemptOutcome("host_oom", "memory ran out, and the system killed the worker")
    with suppress(OSError):
        # C++ aborts, and Python may not even start; earlier workers may have written before.
        if _OUT_OF_MEMORY_PATTERN.search(read_tail(attempt.log, 300)):
            return AttemptOutcome(
                "host_oom", f"there is too little memory for the worker (code {child_exit.exit_code})"
            )
    return AttemptOutcome.from_exit_code(child_exit.exit_code, "the worker")
