"""How an attempt ended, and the error that this is to the user."""

from __future__ import annotations

from contextlib import suppress

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
from mmf_win.protocol import AttemptRequest, Exit, Outcome
from mmf_win.supervise import Ended

_ERRORS: dict[Outcome, type[MmfwError]] = {
    "interrupted": Interrupted,
    "cuda_oom": TrainingError,
    "host_oom": ResourceError,
    "disk": ResourceError,
    "nan": TrainingError,
    "killed": TrainingError,
    "data": DataError,
    "checkpoint": CheckpointError,
    "untrusted": CheckpointError,
    "config": UsageError,
    "mmf": MmfError,
    "network": MmfError,
}


def exit_of(asked: AttemptRequest, ended: Ended, *, memory_ran_out: bool) -> Exit:
    """What the worker said about its end, or else what its death tells; saved where it is not what it said.

    Args:
        asked: what the worker was to do.
        ended: how its process ended.
        memory_ran_out: the system killed a process meanwhile because memory ran out.
    """
    said = None
    with suppress(DataError):  # one that cannot be read says nothing
        said = Exit.load(asked.attempt.exit)
    end = said or _died(ended, memory_ran_out)
    if end.outcome == "killed" and memory_ran_out:
        end = Exit("host_oom", "memory ran out, and the system killed a rank")
    if ended.stop_requested and end.outcome in ("cuda_oom", "host_oom"):
        # Whoever asked for the prompt must not get another attempt.
        end = Exit("interrupted", f"stopped; memory ran out meanwhile ({end.message})")
    if end is not said:
        end.save(asked.attempt.exit)
        if asked.action == "train":
            end.save(asked.run.exit_file)
    return end


def as_error(end: Exit, asked: AttemptRequest) -> MmfwError:
    """The outcome of an attempt as an error whose class gives the exit code.

    Of what to do next it brings only what the worker said; the rest needs names of options and commands.
    """
    message = end.message or end.outcome
    if end.outcome == "internal" and end.where:
        message += f" (at {end.where})"
    hint = f"{end.hint}; the whole output is in {asked.log}" if end.hint else None
    ended = {"outcome": end.outcome, "action": asked.action, "run_dir": asked.run.path, "log": asked.log}
    return _ERRORS.get(end.outcome, TrainingError)(message, hint=hint, **ended)


def _died(ended: Ended, memory_ran_out: bool) -> Exit:
    if ended.killed:
        return Exit("interrupted", "ended at once, or for lack of progress; updates not yet saved are lost")
    if ended.code == -9:
        if memory_ran_out:
            return Exit("host_oom", "memory ran out, and the system killed the worker")
        return Exit("killed", "the worker was killed from outside (kill -9), or because memory ran out")
    if ended.code == -7:
        return Exit("host_oom", "the worker died of a bus error, most likely because /dev/shm is full")
    return Exit("internal", f"worker exited unexpectedly (code {ended.code})")
