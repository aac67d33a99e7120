"""Attempts until one fits into memory: fewer rows at once, or fewer workers, in a fresh process each time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mmf_win.console import say
from mmf_win.errors import CheckpointError
from mmf_win.protocol import AttemptRequest, Event, EventLog, Exit, read_events
from mmf_win.runs import checkpoints, gpus
from mmf_win.runs.endings import as_error
from mmf_win.runs.folder import Run

_MOST = 6
_PAUSE = 0.5
_PATIENCE = 20.0
_LITTLE = 512 << 20  # bytes of a GPU that come and go with its other uses


@dataclass(frozen=True)
class Trial:
    """What may differ between the attempts of a run; None leaves it to the run.

    Attributes:
        micro_batch: rows at once in training.
        eval_batch: rows at once in validation and prediction.
        workers: processes of a DataLoader.
    """

    micro_batch: int | None = None
    eval_batch: int | None = None
    workers: int | None = None


@dataclass(frozen=True)
class Start:
    """Where an attempt begins.

    Attributes:
        checkpoint: the file to go on from; None for the beginning.
        seed: the seed of an attempt that begins where the first one did; None for the run's own.
        weights_alone: take only the weights of the checkpoint, and begin at update 0.
        trust: load the checkpoint even if it holds classes that torch refuses.
    """

    checkpoint: Path | None = None
    seed: int | None = None
    weights_alone: bool = False
    trust: bool = False


Attempt = Callable[[Trial, Start], tuple[AttemptRequest, Exit]]


def until_it_fits(run: Run, attempt: Attempt, start: Start, *, retry: bool = True) -> None:
    """Attempt something until it goes well, or memory is not what it fails for, or nothing smaller is left.

    Args:
        run: its folder.
        attempt: begins a worker, and says what was asked of it and how it ended.
        start: where the first attempt begins.
        retry: whether there may be more than one.

    Raises:
        MmfwError: the class says how it ended.
    """
    trial, begin = Trial(), start
    free = gpus.free_memory() if retry else []
    for number in range(1, _MOST + 1):
        request, end = attempt(trial, begin)
        events = events_of(run, request)
        if end.outcome == "ok":
            return
        started = what_began(events)
        smaller = following(trial, end, started) if retry and number < _MOST else None
        if smaller is None or started is None:
            raise as_error(end, run, request.action)
        changed = {key: value for key, value in asdict(smaller).items() if value != getattr(trial, key)}
        log = EventLog(run.events, request.attempt.name)
        log.write("attempt_failed", reason=end.outcome, phase=end.phase, **asdict(trial), next=changed)
        if request.action == "train":
            begin = _where_to_go_on(run, events, begin, started)
        say(_told(end, trial, smaller, started, begin if request.action == "train" else None))
        trial = smaller
        try:
            _wait_until_free(free)
        except KeyboardInterrupt:
            stopped = Exit("interrupted", "stopped between two attempts")
            raise as_error(stopped, run, request.action) from None
    raise AssertionError("the last attempt returns or raises")


def events_of(run: Run, request: AttemptRequest) -> list[Event]:
    """What happened in one attempt."""
    return [event for event in read_events(run.events) if event.get("attempt") == request.attempt.name]


def following(trial: Trial, end: Exit, started: Event | None) -> Trial | None:
    """What to try next; None when memory is not the matter, or nothing smaller is left.

    Args:
        trial: what was tried.
        end: how it ended.
        started: the event that tells what it really was; without it, not even the model fitted.
    """
    if started is None:
        return None
    if end.outcome == "host_oom":
        return replace(trial, workers=started["workers"] // 2) if started["workers"] else None
    if end.outcome != "cuda_oom":
        return None
    if end.phase in ("val", "predict"):
        rows = smaller_rows(started["batch"], trial.eval_batch or started["batch"])
        return replace(trial, eval_batch=rows) if rows else None
    rows = smaller_rows(started["batch"], started["micro_batch"])
    return replace(trial, micro_batch=rows) if rows else None


def what_began(events: list[Event]) -> Event | None:
    """The event that tells how training or prediction began, with the micro-batch that it came to."""
    began: Event | None = None
    for event in events:
        if event["kind"] in ("train_started", "predict_started"):
            began = dict(event)
        elif event["kind"] == "micro_batch" and began is not None:
            began["micro_batch"], began["searching"] = event["rows"], not event["found"]
    return began


def smaller_rows(batch: int, failed: int) -> int | None:
    """The largest proper divisor of ``batch`` at or under three quarters of what failed; None at one row."""
    divisors = (rows for rows in range(1, batch) if batch % rows == 0 and 4 * rows <= 3 * failed)
    return max(divisors, default=None)


def _where_to_go_on(run: Run, events: list[Event], begin: Start, started: Event) -> Start:
    """The newest whole checkpoint, if this attempt saved one; an older file may be further than its start."""
    if any(event["kind"] == "checkpoint" for event in events):
        try:
            return Start(checkpoints.announced(checkpoints.choose(run, "last")))
        except CheckpointError:
            pass
    resumes = begin.checkpoint is not None and not begin.weights_alone
    return begin if resumes else replace(begin, seed=started["seed"])


def _told(end: Exit, trial: Trial, smaller: Trial, started: Event, begin: Start | None) -> str:
    if end.outcome == "host_oom":
        what = f"memory ran out with {started['workers']} DataLoader workers; trying {smaller.workers}"
    elif smaller.eval_batch != trial.eval_batch:
        failed = trial.eval_batch or started["batch"]
        where = "in validation, " if end.phase == "val" else ""
        what = f"out of GPU memory {where}with {failed} rows at once; trying {smaller.eval_batch}"
        what += ", and metrics on the CPU; training stays as it is" if end.phase == "val" else ""
    else:
        what = f"out of GPU memory with {started['micro_batch']} rows at once; trying {smaller.micro_batch}"
        what += f", still {started['batch']} an update"
    if begin is None:
        return what
    return f"{what}; from {begin.checkpoint.name if begin.checkpoint else 'the beginning'}"


def _wait_until_free(before: list[int]) -> None:
    """Wait, but not for long, until each GPU has the memory back that the dead worker had of it.

    Args:
        before: free bytes of each GPU before there was a worker; nothing where nobody knows them.
    """
    deadline = time.monotonic() + _PATIENCE
    told = False
    while before and time.monotonic() < deadline:
        now = gpus.free_memory()
        if all(free >= was - _LITTLE for free, was in zip(now, before, strict=False)):
            return
        if not told:
            say("waiting until the GPU's memory is free again …")
            told = True
        time.sleep(_PAUSE)
