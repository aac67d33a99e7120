"""Attempts of a run: each uses a fresh worker; after out-of-memory the next one has smaller limits."""

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
from mmf_win.runs.history import find_attempt_start_event
from mmf_win.runs.outcomes import determine_outcome, outcome_error
from mmf_win.runs.plan import Plan, choose_reduction, next_attempt
from mmf_win.supervise import StopPolicy, count_oom_kills, run_child
from mmf_win.upstream import default_settings

_log = logging.getLogger(__name__)

_MAX_ATTEMPTS = 6
#: Seconds between two checks for free GPU memory.
GPU_POLL_SECONDS = 0.5
_GPU_WAIT_SECONDS = 20.0
_GPU_SLACK_BYTES = 512 << 20  # tolerated, since other programs use the GPU, too

_RETRY_MESSAGES = {
    "workers": "out of memory with %d DataLoader workers; retrying with %d",
    "eval_batch": "out of GPU memory evaluating a micro-batch of %d; retrying with %d and metrics on the CPU",
    "micro_batch": "out of GPU memory with a micro-batch of %d; retrying with %d (the batch stays the same)",
}

#: Creates the display of an attempt's events, which is entered when the worker starts.
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
    """Run attempts until one succeeds, fails for a reason other than memory, or no limit can be reduced.

    Args:
        run: The run (or temporary folder) in which each attempt gets its own folder.
        first_attempt: The request of the first attempt; its ``attempt_dir`` is ignored.
        run_attempt: Runs one attempt to its end and returns its outcome.
        retry: Retry after out-of-memory; otherwise there is only one attempt.

    Returns:
        The request of the successful attempt.

    Raises:
        MmfwError: The last attempt failed; the class gives the exit code.
    """  # noqa: DOC501 - a function makes the error
    attempt = first_attempt
    free_bytes = machine.free_gpu_memory() if retry else []
    number = 0
    while True:
        number += 1
        attempt = replace(attempt, attempt_dir=str(run.create_attempt().path))
        outcome = run_attempt(attempt)
        if outcome.kind == "ok":
            return attempt
        try:
            events = read_attempt_events(attempt)
            start_event = find_attempt_start_event(events)
            reduction = choose_reduction(attempt, outcome, start_event) if retry and number < _MAX_ATTEMPTS else None
            if reduction is None or start_event is None:
                raise outcome_error(outcome, attempt)
            failed, (limit, old_value, new_value) = attempt, reduction
            failed.write_event("attempt_failed", next={limit: new_value})
            attempt = next_attempt(failed, limit, new_value, start_event, _find_saved_checkpoint(run, events, failed))
            _log.info(_RETRY_MESSAGES[limit], old_value, new_value)
            if attempt.is_training:
                origin = Path(attempt.checkpoint).name if attempt.checkpoint else "the beginning"
                _log.info("training from %s", origin)
            _wait_for_gpu_memory(free_bytes)
        except KeyboardInterrupt:
            raise outcome_error(AttemptOutcome("interrupted", "stopped between two attempts"), attempt) from None


@contextmanager
def writable_run(run: Run) -> Iterator[Run]:
    """Yield the run whose folder receives the attempts of a prediction.

    If the user may only read ``run``, this is a temporary folder instead. It is removed at the end, but kept
    after an error because it contains the log.

    Raises:
        OSError: The run's folder is not usable, for another reason than permissions.
        MmfwError: The prediction in the block failed.
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
    """Return the events of one attempt."""
    return [event for event in read_events(attempt.events) if event.get("attempt") == attempt.folder.path.name]


def prepare_worker(attempt: AttemptRequest, plan: Plan) -> tuple[list[str], dict[str, str]]:
    """Save the request of an attempt; return the command and the environment of its worker."""
    run, folder = Run(attempt.run_dir), attempt.folder
    write_bytes(folder.reserve_file, os.urandom(16 << 10))  # space for its last files on a full disk
    # MMF writes its configuration there too; a prediction must not overwrite that of the training.
    save_dir, logs = (run.checkpoints, run.logs) if attempt.is_training else (folder.raw_predictions, folder.logs)
    save_dir.mkdir(exist_ok=True)
    attempt.save()  # last: from here on, the run's outcome is that of this attempt
    environment = default_settings.worker_environment(
        plan.job.mmf_paths,
        save_dir,
        logs,
        folder.raw_predictions,
        offline=plan.request.offline,
        may_query_hub=attempt.may_query_hub,
    )
    environment = default_settings.limit_gpus(environment, 0 if plan.job.options.cpu else attempt.train_task.nproc)
    return [*WORKER_COMMAND, str(folder.request_file)], environment


def run_worker(
    run: Run, attempt: AttemptRequest, plan: Plan, display: DisplayFactory, *, lock_fd: int | None = None
) -> AttemptOutcome:
    """Run one worker to its end and return its outcome, which is also saved in the attempt's folder.

    Args:
        run: The run; a training saves the plan's request in it as soon as the training has started.
        attempt: The request of the attempt.
        plan: The plan that the attempt belongs to.
        display: Shows the events of the attempt.
        lock_fd: Descriptor of the run's training lock, which the worker inherits; ``None`` for predictions.

    Returns:
        The outcome.

    Raises:
        StoppedByUserError: A stop was requested, but the attempt had just succeeded and saves no checkpoint.
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
        """Show new events; return whether there were any or a checkpoint is being written."""
        nonlocal saving
        events = list(reader.poll())
        for event in events:
            saving = event["kind"] == "saving"
            if event["kind"] == "train_started":
                # Not earlier: a run must not store settings that MMF refuses.
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
            stop_policy=StopPolicy(plan.job.options.stop_timeout, on_stop=lambda: _log.info(stopping)),
            inherited_fds=[] if lock_fd is None else [lock_fd],
        )
    outcome = determine_outcome(attempt, child_exit, memory_ran_out=count_oom_kills() != initial_oom_kills)
    if child_exit.stop_requested and outcome.kind == "ok":
        if not saves:  # the caller must not continue, for example with the next split
            raise StoppedByUserError("stopped")
        _log.info("run %s had already finished", run.id)
    return outcome


def _find_saved_checkpoint(run: Run, events: list[Event], failed_attempt: AttemptRequest) -> Path | None:
    """Return the newest intact checkpoint if the attempt saved one, else ``None``.

    Without a save, an older file may be ahead of the update at which the attempt started.
    """
    if not failed_attempt.discards_weights and any(event["kind"] == "checkpoint" for event in events):
        with suppress(CheckpointError):
            return checkpoints.select_checkpoint(run, "last").path
    return None


def _wait_for_gpu_memory(initial_free_bytes: list[int]) -> None:
    """Wait, up to a timeout, until each GPU has as much free memory as before the worker that failed.

    Args:
        initial_free_bytes: Free bytes of each GPU before the first worker; empty if unknown.
    """

    def is_free() -> bool:
        free = machine.free_gpu_memory()
        return all(now >= was - _GPU_SLACK_BYTES for now, was in zip(free, initial_free_bytes, strict=False))

    if not initial_free_bytes or is_free():
        return
    _log.info("waiting for free GPU memory …")
    deadline = time.monotonic() + _GPU_WAIT_SECONDS
    while time.monotonic() < deadline and not is_free():
        time.sleep(GPU_POLL_SECONDS)
