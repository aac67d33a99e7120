"""Outcomes of attempts, the errors reported for them, and the commands that continue from there."""

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
from mmf_win.runs.history import RunRecord, find_attempt_start_event
from mmf_win.runs.lookup import list_runs
from mmf_win.signals import STOP_SIGNALS
from mmf_win.supervise import ChildExit

# All other kinds are training errors.
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

# A terminal signals every process, perhaps before the worker has installed its handlers.
_STOP_SIGNAL_CODES = {-number for number in STOP_SIGNALS}

_OUT_OF_MEMORY_PATTERN = re.compile(rb"std::bad_alloc|failed to map segment|MemoryError|[Cc]annot allocate memory")

_START_OVER_HINT = "run the same command again to start over"

# {resume}: how to resume, or to start over if nothing is saved; {again}: the command for it.
_HINTS = {
    "cuda_oom": "check with `nvidia-smi` for other programs on the GPU, or choose a smaller model",
    "host_oom": "try a smaller --batch-size, or close other programs",
    "disk": "free some space; {resume}",
    "nan": "run {again} with --detect-anomaly to find the operation, or start over with a smaller optimizer.params.lr",
    "nan of an operation": "start over with a smaller optimizer.params.lr",
    "nan in fp16": "run {again} with --precision fp32, since fp16 numbers end at 65,504",
    "killed": "{resume}",
    "untrusted": "if you trust the source of the file, run the same command again with --trust",
    "config": "check the KEY=VALUE overrides and the preset against MMF's configuration",
    "mmf": "run `mmfw doctor`",
    "network": "check the network connection and run the same command again",
}


def determine_outcome(attempt: AttemptRequest, child_exit: ChildExit, *, memory_ran_out: bool) -> AttemptOutcome:
    """Determine the outcome of an attempt from its outcome file or, without one, from the exit code.

    The outcome is saved if it differs from the file.

    Args:
        attempt: The attempt.
        child_exit: Exit status of the worker.
        memory_ran_out: The out-of-memory killer ended a process during the attempt.

    Returns:
        The outcome.
    """
    recorded = None
    with suppress(errors.DataError):  # a damaged file is ignored
        recorded = AttemptOutcome.load(attempt.folder.outcome_file)
    outcome = recorded or _outcome_of_death(attempt, child_exit, memory_ran_out)
    if outcome.kind == "killed" and memory_ran_out:
        outcome = AttemptOutcome("host_oom", "out of memory: the system killed a process")
    if child_exit.stop_requested and outcome.kind in ("cuda_oom", "host_oom"):
        # The user wants to stop, so there must not be another attempt.
        outcome = AttemptOutcome("interrupted", f"stopped while out of memory ({outcome.message})")
    if outcome is not recorded:
        outcome.record(attempt)
    return outcome


def outcome_error(outcome: AttemptOutcome, attempt: AttemptRequest, output_hint: str | None = None) -> errors.MmfwError:
    """Return the outcome of an attempt as an error with a hint; its class gives the exit code.

    Args:
        outcome: The outcome.
        attempt: The attempt.
        output_hint: Part of the hint about the output; ``None`` to name the log.
    """
    if output_hint is None:
        # Profiling moves the log.
        output_hint = "" if attempt.profile_updates else f"see {attempt.log} for the full output"
        if isinstance(attempt.task, CheckTask):
            output_hint = "run `mmfw train` to keep the full output"
    message = outcome.message or outcome.kind
    if outcome.kind == "internal" and outcome.source_location:
        message += f" (at {outcome.source_location})"
    hint = _outcome_hint(outcome.kind, attempt, output_hint)
    if outcome.hint:
        # For "internal", the hint names only the output.
        next_step = _outcome_hint("killed" if outcome.kind == "disk" else "internal", attempt, output_hint)
        hint = "; ".join(filter(None, (outcome.hint, next_step)))
    return _ERROR_CLASSES.get(outcome.kind, errors.TrainingError)(message, hint=hint, log=attempt.log)


def _outcome_hint(kind: str, attempt: AttemptRequest, output_hint: str) -> str | None:
    run, resumes = Run(attempt.run_dir), attempt.is_training and not attempt.discards_weights
    resumes = resumes and not attempt.train_task.node_rank  # the run is saved on node 0
    if kind == "interrupted":
        if not resumes:
            return None
        is_saved = any(run.checkpoints.glob("*.ckpt"))  # not read, since the user waits for the prompt
        return f"resume with `{resume_command(run)}`" if is_saved else f"nothing saved yet; {_START_OVER_HINT}"
    if kind == "nan" and (find_attempt_start_event(read_events(attempt.events)) or {}).get("precision") == "fp16":
        kind = "nan in fp16"
    elif kind == "nan" and attempt.settings.get("training", {}).get("detect_anomaly"):
        kind = "nan of an operation"
    hint = _HINTS.get(kind, "")
    if "{again}" in hint and not resumes:
        hint = ""
    elif "{" in hint and resumes and checkpoints.can_resume(run):
        command = resume_command(run)
        hint = hint.format(resume=f"resume from the last intact checkpoint with `{command}`", again=f"`{command}`")
    else:
        hint = hint.format(resume=_START_OVER_HINT, again="the same command")
    return "; ".join(filter(None, (hint, output_hint)))


def resume_command(run: Run) -> str:
    """Return the command that resumes this run, which need not be the newest one."""
    save_dir = run.path.parent.parent
    newest = next(iter(list_runs(save_dir)), run)
    run_spec = "last" if newest.path == run.path else run.id
    return format_command("mmfw", "train", "--resume", run_spec, "--save-dir", save_dir)


def intact_checkpoint_hint(run: Run, saved_checkpoints: Iterable[checkpoints.SavedCheckpoint]) -> str | None:
    """Return a hint that names the newest intact checkpoint and the command that uses it.

    Args:
        run: The run.
        saved_checkpoints: Intact checkpoints of the run.

    Returns:
        The hint, or ``None`` if no checkpoint can be resumed.
    """
    # Files with only weights cannot be resumed.
    resumable = (checkpoint for checkpoint in saved_checkpoints if checkpoint.update is not None)
    newest = max(resumable, key=lambda checkpoint: checkpoint.written, default=None)
    if newest is None:
        return None
    advice = f"resume from it with `{resume_command(run)}`"
    with suppress(errors.DataError):
        summary = RunRecord.read(run).summary
        if summary.state == "done" and summary.updates == newest.update:  # no update left to train
            predict = format_command("mmfw", "predict", run.id, "--save-dir", run.path.parent.parent)
            advice = f"predict with it: `{predict}`"
    return f"the newest intact checkpoint is {newest.name}; {advice}"


def _outcome_of_death(attempt: AttemptRequest, child_exit: ChildExit, memory_ran_out: bool) -> AttemptOutcome:
    if child_exit.killed or (child_exit.stop_requested and child_exit.exit_code in _STOP_SIGNAL_CODES):
        return AttemptOutcome("interrupted", "killed on request or for lack of progress; unsaved updates are lost")
    if child_exit.exit_code == -9 and memory_ran_out:
        return AttemptOutcome("host_oom", "out of memory: the system killed the worker")
    with suppress(OSError):
        # C++ aborts, and Python may not even start. Only the end counts: the log is shared by all workers.
        if _OUT_OF_MEMORY_PATTERN.search(read_tail(attempt.log, 300)):
            return AttemptOutcome("host_oom", f"not enough memory for the worker (exit code {child_exit.exit_code})")
    return AttemptOutcome.from_exit_code(child_exit.exit_code, "the worker")
