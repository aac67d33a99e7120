"""Follower: a separate process that uploads a run to one tracker while it trains.

It ends when mmfw, which holds its standard input open, and the worker have ended. It cannot harm the
training: it only reads files, at low priority, and a later command sends what it could not send.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

from mmf_win.console import format_command, show_log_messages
from mmf_win.errors import StoppedByUserError
from mmf_win.locking import is_locked
from mmf_win.paths import module_command
from mmf_win.runs.folder import Run, usage_lock
from mmf_win.scrub import redact_urls
from mmf_win.signals import block_stop_signals
from mmf_win.tracking.tracker import Tracker, create_tracker, describe_error, retry_advice
from mmf_win.tracking.upload import SweepInfo, Uploader, UploadOptions, UploadState

_log = logging.getLogger(__name__)

# Tests shorten the public ones.
#: Seconds between two checks of the run.
POLL_INTERVAL_S, _MAX_POLL_INTERVAL_S = 3.0, 60.0
#: Seconds that one upload may take, plus one per MiB of a checkpoint.
UPLOAD_TIMEOUT_S = 120.0
#: Seconds for sending the rest after Ctrl+C, and to a tracker that does not answer.
CTRL_C_TIMEOUT_S = 5.0
_CHECKPOINT_INTERVAL_S = 600.0
_STOP_SOON, _SEND_ALL = b"!", b"."
_EXIT_INCOMPLETE = 3
_Followers = list[tuple[Run, Tracker, subprocess.Popen[bytes]]]


@contextmanager
def manage_followers(
    trackers: Sequence[Tracker], options: UploadOptions, sweep_of: Callable[[Run], SweepInfo | None]
) -> Iterator[Callable[[Run], None]]:
    """Start followers within the block, and wait for them at its end.

    The wait lasts until they have sent everything, but only five seconds after Ctrl+C. Warnings name the
    incomplete uploads, with the command that completes them.

    Args:
        trackers: Trackers to upload to.
        options: Optional uploads.
        sweep_of: Returns the sweep of a run, or ``None``.

    Yields:
        A function that starts the followers of a run, one per tracker.

    Raises:
        StoppedByUserError: The block was stopped.
        KeyboardInterrupt: The block was interrupted.
    """
    started: _Followers = []

    def start(run: Run) -> None:
        for tracker in trackers:
            try:
                process = _start_follower(run, tracker, replace(options, sweep=sweep_of(run)))
                started.append((run, tracker, process))
            except OSError as error:  # such as a full disk
                _warn_incomplete(run, tracker, options, str(error))

    deadline = float("inf")
    try:
        yield start
    except (StoppedByUserError, KeyboardInterrupt):
        deadline = time.monotonic() + CTRL_C_TIMEOUT_S
        raise
    finally:
        _stop_followers(started, options, deadline)


def _start_follower(run: Run, tracker: Tracker, options: UploadOptions) -> subprocess.Popen[bytes]:
    run.tracking.mkdir(exist_ok=True)
    popen_options: dict[str, Any] = {"start_new_session": True}  # not stopped by Ctrl+C in the terminal
    if sys.platform == "win32":
        flags = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
        popen_options = {"creationflags": flags | subprocess.BELOW_NORMAL_PRIORITY_CLASS}
    command = module_command("mmf_win.tracking.follower", tracker.name, str(run.path), json.dumps(asdict(options)))
    with _log_file(run, tracker).open("ab") as log, block_stop_signals():
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, **popen_options)


def _log_file(run: Run, tracker: Tracker) -> Path:
    return run.tracking / f"{tracker.name}.log"


def _stop_followers(started: _Followers, options: UploadOptions, deadline: float) -> None:
    """Tell the followers to finish, wait for them, and log a warning for each incomplete upload.

    Args:
        started: The followers.
        options: Options of the uploads, for the commands in the warnings.
        deadline: Time of ``time.monotonic`` when a follower that is still running is killed; infinity if the
            followers may take as long as they need. A follower that will probably fail, because its last upload
            failed or it has never reached its server, is killed after CTRL_C_TIMEOUT_S.
    """
    for _, _, process in started:
        assert process.stdin is not None
        with suppress(OSError):  # it has ended
            process.stdin.write(_SEND_ALL if deadline == float("inf") else _STOP_SOON)
            process.stdin.close()
    log_time = time.monotonic() + 1
    for run, tracker, process in started:
        state, give_up_at = UploadState.load(run, tracker), deadline
        if state.error or not (tracker.is_reachable or state.id):  # it probably still fails
            give_up_at = min(deadline, time.monotonic() + CTRL_C_TIMEOUT_S)
        try:
            while process.poll() is None and time.monotonic() < give_up_at:
                time.sleep(0.05)
                if time.monotonic() > log_time:
                    log_time = float("inf")
                    _log.info("uploading the rest to %s; press Ctrl+C to skip it …", tracker.name)
        except KeyboardInterrupt:  # stops only the upload, as the training has ended
            deadline = 0.0
        if process.poll() is None:
            process.kill()
            process.wait()
            reason = "no time to upload the rest" if tracker.is_reachable else "server does not answer"
            _warn_incomplete(run, tracker, options, reason)
        elif process.returncode:
            reason = UploadState.load(run, tracker).error or f"see {_log_file(run, tracker)}"
            _warn_incomplete(run, tracker, options, reason)


def _warn_incomplete(run: Run, tracker: Tracker, options: UploadOptions, reason: str) -> None:
    command = format_command("mmfw", "track", "push", run.path, "--to", tracker.name, *options.arguments)
    message = "upload to %s incomplete for run %s (%s); run `%s` %s"
    _log.warning(message, tracker.name, run.id, reason, command, retry_advice(reason))


def follow_run(run: Run, tracker: Tracker, options: UploadOptions) -> int:
    """Upload a run until mmfw and its worker have ended; return 0 if everything was sent."""
    mmfw_ended, has_lock = Event(), Event()
    stop_byte = b""

    def wait_for_stop() -> None:
        nonlocal stop_byte
        stop_byte = os.read(0, 1)
        mmfw_ended.set()
        time.sleep(CTRL_C_TIMEOUT_S + 1)  # after Ctrl+C, mmfw kills this process earlier
        if stop_byte == _STOP_SOON:
            os._exit(_EXIT_INCOMPLETE)
        if not has_lock.is_set():  # the follower that holds the lock sends everything
            os._exit(0)

    Thread(target=wait_for_stop, daemon=True).start()
    interval, uploader = POLL_INTERVAL_S, None
    # The follower of an earlier command may still hold the lock.
    upload_lock = UploadState.load(run, tracker).upload_lock(run, timeout=float("inf"))
    with upload_lock, usage_lock(run):
        has_lock.set()
        while True:
            # The run's worker outlives mmfw only if mmfw was killed, which then sent no byte.
            is_over = mmfw_ended.is_set() and (stop_byte != b"" or not is_locked(run.training_lock_file))
            try:
                sizes = [file.stat().st_size for file in run.checkpoints.glob("*.ckpt")]
                # A tracker's package may hang.
                timeout = UPLOAD_TIMEOUT_S + max(sizes, default=0) / (1 << 20)
                faulthandler.dump_traceback_later(timeout, exit=True)
                uploader = uploader or Uploader(run, tracker, options)
                final_interval = float("inf") if stop_byte == _STOP_SOON else 0.0
                uploader.upload_new(final_interval if is_over else _CHECKPOINT_INTERVAL_S)
                if is_over:
                    uploader.close()
                    return 0
                interval = POLL_INTERVAL_S
            except Exception as error:  # from the tracker's package or the disk
                _log.warning("%s: %s", type(error).__name__, redact_urls(str(error)))
                state, uploader = UploadState.load(run, tracker), None
                state.error = describe_error(error)
                with suppress(OSError):
                    state.save(run)
                if is_over:
                    return _EXIT_INCOMPLETE
                interval = min(2 * interval, _MAX_POLL_INTERVAL_S)
            faulthandler.cancel_dump_traceback_later()
            if mmfw_ended.wait(interval):
                time.sleep(1)  # until the worker has ended


def main() -> int:
    """Follow the run on the command line: the tracker, the run, and the upload options as JSON."""
    name, run, options = sys.argv[1:]
    if sys.platform != "win32":
        os.nice(10)
    with show_log_messages():
        return follow_run(Run(Path(run)), create_tracker(name), UploadOptions(**json.loads(options)))


if __name__ == "__main__":
    sys.exit(main())
