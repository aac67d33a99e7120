"""Runs the attempts of a run: a fresh worker each, until one does not fail for lack of memory."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from mmf_win import machine
from mmf_win.errors import PERMISSION_ERRNOS, CheckpointError, MmfwError, StoppedByUserError
from mmf_win.files import remove, remove_tree, write_bytes
from mmf_win.paths import module_command
from mmf_win.protocol import AttemptOutcome, AttemptRequest, Event, EventReader, read_events
from mmf_win.runs import checkpoints
from mmf_win.runs.folder import Run
from mmf_win.runs.history import attempt_started
from mmf_win.runs.outcomes import as_error, exit_of
from mmf_win.runs.plan import Plan, following, limit_to_lower
from mmf_win.supervise import count_oom_kills, run_child
from mmf_win.upstream import settings

_log = logging.getLogger(__name__)

_MOST = 6
#: The seconds between two looks at a GPU whose memory is to become free.
PAUSE = 0.5
_PATIENCE = 20.0
_LITTLE = 512 << 20  # bytes of a GPU that come and go with its other uses

_SHRINKING = {
    "workers": "memory ran out with %d DataLoader workers; trying %d",
    "eval_batch": "out of GPU memory evaluating a micro-batch of %d; trying %d, with metrics on the CPU",
    "micro_batch": "out of GPU memory with a micro-batch of %d; trying %d, which does not change the batch",
}

#: Makes what shows an attempt's events while it runs; it is entered when the worker starts.
Display = Callable[[], AbstractContextManager[Callable[[Event], None]]]

#: The command that starts a worker, without the path of its request.
#:
#: Public so that tests can start a worker whose imports are already done.
WORKER_COMMAND = module_command("mmf_win.worker.entry")


def until_it_fits(
    run: Run,
    first: AttemptRequest,
    attempt: Callable[[AttemptRequest], AttemptOutcome],
    *,
    retry: bool = True,
) -> AttemptRequest:
    """Attempt something until it succeeds, fails for another reason than memory, or cannot get smaller.

    Each attempt gets a folder of its own in the run's, and ``attempt`` runs it to its end. Without ``retry``
    there is but one. What the one that succeeded did is returned; else the class of an MmfwError tells how
    the last one ended.
    """
    asked = first
    free = machine.free_gpu_memory() if retry else []
    for number in range(1, _MOST + 1):
        asked = replace(asked, attempt_dir=str(run.new_attempt().path))
        end = attempt(asked)
        if end.kind == "ok":
            return asked
        try:
            events = events_of_attempt(asked)
            started = attempt_started(events)
            less = limit_to_lower(asked, end, started) if retry and number < _MOST else None
            if less is None or started is None:
                raise as_error(end, asked)
            failed, (name, had, fewer) = asked, less
            failed.write_event("attempt_failed", next={name: fewer})
            asked = following(failed, name, fewer, started, _newest_saved(run, events, failed))
            _log.info(_SHRINKING[name], had, fewer)
            if asked.is_training:
                origin = Path(asked.checkpoint).name if asked.checkpoint else "the beginning"
                _log.info("training from %s", origin)
            _wait_until_free(free)
        except KeyboardInterrupt:
            raise as_error(AttemptOutcome("interrupted", "stopped between two attempts"), asked) from None
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def place_of_attempts(run: Run) -> Iterator[Run]:
    """Yield the run whose folder the attempts of a prediction go to.

    For a run that this user may only read, that is a temporary folder. It stays after an error, for its log.
    """
    place = run
    try:
        run.new_attempt().path.rmdir()
    except OSError as error:
        if error.errno not in PERMISSION_ERRNOS:
            raise
        place = Run(Path(mkdtemp(prefix="mmfw-attempts-")))
    failed = False
    try:
        yield place
    except MmfwError as error:
        failed = not isinstance(error, StoppedByUserError)
        raise
    finally:
        if place is not run and not failed:
            remove_tree(place.path)


def events_of_attempt(asked: AttemptRequest) -> list[Event]:
    """What happened in one attempt."""
    return [event for event in read_events(asked.events) if event.get("attempt") == asked.folder.path.name]


def worker_of(asked: AttemptRequest, plan: Plan) -> tuple[list[str], dict[str, str]]:
    """The command that starts a worker, and its environment; what it is to do is saved for it."""
    run, files = Run(asked.run_dir), asked.folder
    write_bytes(files.reserve_file, os.urandom(16 << 10))  # a block for each file that it may need
    # MMF writes its configuration there too; a prediction must not overwrite that of the training.
    save_dir, logs = (run.checkpoints, run.logs) if asked.is_training else (files.raw_predictions, files.logs)
    save_dir.mkdir(exist_ok=True)
    asked.save()  # last, as the outcome of this attempt is the run's from here on
    environment = settings.environment(
        plan.start.places,
        save_dir,
        logs,
        files.raw_predictions,
        offline=plan.request.offline,
        asks_hub=asked.may_query_hub,
    )
    environment = settings.on_gpus(environment, 0 if plan.start.options.cpu else asked.train_task.nproc)
    return [*WORKER_COMMAND, str(files.request_file)], environment


def run_worker(
    run: Run, asked: AttemptRequest, plan: Plan, display: Display, *, lock: int | None = None
) -> AttemptOutcome:
    """Run one worker to its end, and say how it ended; the attempt's folder says so too.

    For a training, ``lock`` is the descriptor of the run's lock, and the run remembers the plan's request.

    Raises:
        Interrupted: the user asked for a stop in the last moment of what is no training.
    """
    files = asked.folder
    command, environment = worker_of(asked, plan)
    saves = asked.is_training and not asked.discards_weights
    if asked.is_training:
        remove(run.earlier_exit_file)
    kills = count_oom_kills()
    reader = EventReader(asked.events, from_end=True)
    saving = False
    stopping = f"\n{'saving' if saves else 'stopping'}… press Ctrl+C again to end at once"

    def progressed() -> bool:
        """Whether there is a new event; a checkpoint that is being written counts as one."""
        nonlocal saving
        events = list(reader.poll())
        for event in events:
            saving = event["kind"] == "saving"
            if event["kind"] == "train_started":
                # No sooner: what MMF refuses must not stay with a run that went well so far.
                run.save_request(plan.request)
            show(event)
        return bool(events) or saving

    with display() as show:
        ended = run_child(
            command,
            log=asked.log,
            environment=environment,
            stop_file=files.stop_file,
            outcome_file=files.outcome_file,
            poll_progress=progressed,
            on_stop=lambda: _log.info(stopping),
            stop_timeout=plan.start.options.stop_timeout,
            inherited_fds=[] if lock is None else [lock],
        )
    end = exit_of(asked, ended, memory_ran_out=count_oom_kills() != kills)
    if ended.stop_requested and end.kind == "ok":
        if not saves:  # the next split, or what else follows, must not begin
            raise StoppedByUserError("stopped")
        _log.info("run %s had just ended, and is complete", run.id)
    return end


def _newest_saved(run: Run, events: list[Event], failed: AttemptRequest) -> Path | None:
    """The newest intact checkpoint, if the attempt saved one; an older file may be further than its start."""
    if not failed.discards_weights and any(event["kind"] == "checkpoint" for event in events):
        with suppress(CheckpointError):
            return checkpoints.choose(run, "last").path
    return None


def _wait_until_free(before: list[int]) -> None:
    """Wait, but not for long, until each GPU has the memory back that the dead worker had of it.

    ``before`` are the free bytes of each GPU before there was a worker; nothing where nobody knows them.
    """

    def is_free() -> bool:
        free = machine.free_gpu_memory()
        return all(now >= was - _LITTLE for now, was in zip(free, before, strict=False))

    if not before or is_free():
        return
    _log.info("waiting until the GPU's memory is free again …")
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and not is_free():
        time.sleep(PAUSE)
