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
from mmf_win.runs.history import attempt_start_event
from mmf_win.runs.outcomes import determine_outcome, outcome_error
from mmf_win.runs.plan import Plan, choose_reduction, next_attempt
from mmf_win.supervise import count_oom_kills, run_child
from mmf_win.upstream import default_settings

_log = logging.getLogger(__name__)

_MAX_ATTEMPTS = 6
#: The seconds between two looks at a GPU whose memory is to become free.
GPU_POLL_SECONDS = 0.5
_GPU_WAIT_SECONDS = 20.0
_GPU_SLACK_BYTES = 512 << 20  # bytes of a GPU that come and go with its other uses

_RETRY_MESSAGES = {
    "workers": "memory ran out with %d DataLoader workers; trying %d",
    "eval_batch": "out of GPU memory evaluating a micro-batch of %d; trying %d, with metrics on the CPU",
    "micro_batch": "out of GPU memory with a micro-batch of %d; trying %d, which does not change the batch",
}

#: Makes what shows an attempt's events while it runs; it is entered when the worker starts.
DisplayFactory = Callable[[], AbstractContextManager[Callable[[Event], None]]]

#: The command that starts a worker, without the path of its request.
#:
#: Public so that tests can start a worker whose imports are already done.
WORKER_COMMAND = module_command("mmf_win.worker.entry")


def run_with_retries(
    run: Run,
    first_attempt: AttemptRequest,
    run_attempt: Callable[[AttemptRequest], AttemptOutcome],
    *,
    retry: bool = True,
) -> AttemptRequest:
    """Attempt something until it succeeds, fails for another reason than memory, or cannot get smaller.

    Each attempt gets a folder of its own in the run's, and ``attempt`` runs it to its end. Without ``retry``
    there is but one. What the one that succeeded did is returned; else the class of an MmfwError tells how
    the last one ended.
    """
    attempt = first_attempt
    free_bytes = machine.free_gpu_memory() if retry else []
    for number in range(1, _MAX_ATTEMPTS + 1):
        attempt = replace(attempt, attempt_dir=str(run.create_attempt().path))
        outcome = run_attempt(attempt)
        if outcome.kind == "ok":
            return attempt
        try:
            events = read_attempt_events(attempt)
            start_event = attempt_start_event(events)
            reduction = (
                choose_reduction(attempt, outcome, start_event) if retry and number < _MAX_ATTEMPTS else None
            )
            if reduction is None or start_event is None:
                raise outcome_error(outcome, attempt)
            failed, (limit_name, old_value, new_value) = attempt, reduction
            failed.write_event("attempt_failed", next={limit_name: new_value})
            attempt = next_attempt(
                failed, limit_name, new_value, start_event, _find_saved_checkpoint(run, events, failed)
            )
            _log.info(_RETRY_MESSAGES[limit_name], old_value, new_value)
            if attempt.is_training:
                origin = Path(attempt.checkpoint).name if attempt.checkpoint else "the beginning"
                _log.info("training from %s", origin)
            _wait_for_gpu_memory(free_bytes)
        except KeyboardInterrupt:
            raise outcome_error(
                AttemptOutcome("interrupted", "stopped between two attempts"), attempt
            ) from None
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def writable_run(run: Run) -> Iterator[Run]:
    """Yield the run whose folder the attempts of a prediction go to.

    For a run that this user may only read, that is a temporary folder. It stays after an error, for its log.
    """
    writable = run
    try:
        run.create_attempt().path.rmdir()
    except OSError as error:
        if error.errno not in PERMISSION_ERRNOS:
            raise
        writable = Run(Path(mkdtemp(prefix="mmfw-attempts-")))
    failed = False
    try:
        yield writable
    except MmfwError as error:
        failed = not isinstance(error, StoppedByUserError)
        raise
    finally:
        if writable is not run and not failed:
            remove_tree(writable.path)


def read_attempt_events(attempt: AttemptRequest) -> list[Event]:
    """What happened in one attempt."""
    return [
        event for event in read_events(attempt.events) if event.get("attempt") == attempt.folder.path.name
    ]


def prepare_worker(attempt: AttemptRequest, plan: Plan) -> tuple[list[str], dict[str, str]]:
    """The command that starts a worker, and its environment; what it is to do is saved for it."""
    run, folder = Run(attempt.run_dir), attempt.folder
    write_bytes(folder.reserve_file, os.urandom(16 << 10))  # a block for each file that it may need
    # MMF writes its configuration there too; a prediction must not overwrite that of the training.
    save_dir, logs = (
        (run.checkpoints, run.logs) if attempt.is_training else (folder.raw_predictions, folder.logs)
    )
    save_dir.mkdir(exist_ok=True)
    attempt.save()  # last, as the outcome of this attempt is the run's from here on
    environment = default_settings.worker_environment(
        plan.job.mmf_paths,
        save_dir,
        logs,
        folder.raw_predictions,
        offline=plan.request.offline,
        may_query_hub=attempt.may_query_hub,
    )
    environment = default_settings.limit_gpus(
        environment, 0 if plan.job.options.cpu else attempt.train_task.nproc
    )
    return [*WORKER_COMMAND, str(folder.request_file)], environment


def run_worker(
    run: Run, attempt: AttemptRequest, plan: Plan, display: DisplayFactory, *, lock_fd: int | None = None
) -> AttemptOutcome:
    """Run one worker to its end, and say how it ended; the attempt's folder says so too.

    For a training, ``lock`` is the descriptor of the run's lock, and the run remembers the plan's request.

    Raises:
        Interrupted: the user asked for a stop in the last moment of what is no training.
    """
    folder = attempt.folder
    command, environment = prepare_worker(attempt, plan)
    saves = attempt.is_training and not attempt.discards_weights
    if attempt.is_training:
        remove(run.legacy_outcome_file)
    initial_oom_kills = count_oom_kills()
    reader = EventReader(attempt.events, from_end=True)
    saving = False
    stopping = f"\n{'saving' if saves else 'stopping'}… press Ctrl+C again to end at once"

    def poll_events() -> bool:
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
        child_exit = run_child(
            command,
            log=attempt.log,
            environment=environment,
            stop_file=folder.stop_file,
            outcome_file=folder.outcome_file,
            poll_progress=poll_events,
            on_stop=lambda: _log.info(stopping),
            stop_timeout=plan.job.options.stop_timeout,
            inherited_fds=[] if lock_fd is None else [lock_fd],
        )
    outcome = determine_outcome(attempt, child_exit, memory_ran_out=count_oom_kills() != initial_oom_kills)
    if child_exit.stop_requested and outcome.kind == "ok":
        if not saves:  # the next split, or what else follows, must not begin
            raise StoppedByUserError("stopped")
        _log.info("run %s had just ended, and is complete", run.id)
    return outcome


def _find_saved_checkpoint(run: Run, events: list[Event], failed_attempt: AttemptRequest) -> Path | None:
    """The newest intact checkpoint, if the attempt saved one; an older file may be further than its start."""
    if not failed_attempt.discards_weights and any(event["kind"] == "checkpoint" for event in events):
        with suppress(CheckpointError):
            return checkpoints.select_checkpoint(run, "last").path
    return None


def _wait_for_gpu_memory(initial_free_bytes: list[int]) -> None:
    """Wait, but not for long, until each GPU has the memory back that the dead worker had of it.

    ``before`` are the free bytes of each GPU before there was a worker; nothing where nobody knows them.
    """

    def is_free() -> bool:
        free = machine.free_gpu_memory()
        return all(now >= was - _GPU_SLACK_BYTES for now, was in zip(free, initial_free_bytes, strict=False))

    if not initial_free_bytes or is_free():
        return
    _log.info("waiting until the GPU's memory is free again …")
    deadline = time.monotonic() + _GPU_WAIT_SECONDS
    while time.monotonic() < deadline and not is_free():
        time.sleep(GPU_POLL_SECONDS)
