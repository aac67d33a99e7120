"""Follows a run and sends what becomes of it to one tracker, in a process of its own.

It ends when mmfw, which holds its standard input open, and the worker have ended. Nothing that happens here
harms the training: it only reads files, at a low priority, and what it cannot send a later command sends.
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

# Those with public names are shorter in tests.
#: Seconds from one look at the run to the next.
POLL_INTERVAL_S, _MAX_POLL_INTERVAL_S = 3.0, 60.0
#: Seconds that one look may take, beside one for each MiB of a checkpoint.
UPLOAD_TIMEOUT_S = 120.0
#: Seconds in which followers may send the rest after Ctrl+C, and to a tracker that does not answer.
CTRL_C_TIMEOUT_S = 5.0
_CHECKPOINT_INTERVAL_S = 600.0
_STOP_SOON, _SEND_ALL = b"!", b"."
_EXIT_INCOMPLETE = 3
_Followers = list[tuple[Run, Tracker, subprocess.Popen[bytes]]]


@contextmanager
def manage_followers(
    trackers: Sequence[Tracker], options: UploadOptions, sweep_of: Callable[[Run], SweepInfo | None]
) -> Iterator[Callable[[Run], None]]:
    """Yield what starts the followers of a run, one a tracker; the end of the block waits for their ends.

    It does so for as long as they send, but for five seconds after Ctrl+C. A note says what is left then, and
    which command sends it later.
    """
    started: _Followers = []

    def start(run: Run) -> None:
        for to in trackers:
            try:
                started.append((run, to, _start_follower(run, to, replace(options, sweep=sweep_of(run)))))
            except OSError as error:  # of a full disk, perhaps
                _warn_incomplete(run, to, options, str(error))

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
    how: dict[str, Any] = {"start_new_session": True}  # out of reach of the terminal's Ctrl+C
    if sys.platform == "win32":
        flags = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
        how = {"creationflags": flags | subprocess.BELOW_NORMAL_PRIORITY_CLASS}
    command = module_command(
        "mmf_win.tracking.follower", tracker.name, str(run.path), json.dumps(asdict(options))
    )
    with _log_file(run, tracker).open("ab") as log, block_stop_signals():
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, **how)


def _log_file(run: Run, tracker: Tracker) -> Path:
    return run.tracking / f"{tracker.name}.log"


def _stop_followers(started: _Followers, options: UploadOptions, deadline: float) -> None:
    """Tell followers that mmfw ends, wait for them, and say what they leave."""
    for _, _, process in started:
        assert process.stdin is not None
        with suppress(OSError):  # it has ended
            process.stdin.write(_SEND_ALL if deadline == float("inf") else _STOP_SOON)
            process.stdin.close()
    told = time.monotonic() + 1
    for run, to, process in started:
        known, until = UploadState.load(run, to), deadline
        if known.error or not (to.is_reachable or known.id):  # nor will it, most likely
            until = min(deadline, time.monotonic() + CTRL_C_TIMEOUT_S)
        try:
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
                if time.monotonic() > told:
                    told = float("inf")
                    _log.info("sending the rest to %s; Ctrl+C leaves it for later …", to.name)
        except KeyboardInterrupt:  # the training has ended, so that is not what is stopped
            deadline = 0.0
        if process.poll() is None:
            process.kill()
            process.wait()
            _warn_incomplete(
                run, to, options, "it had no time to send all" if to.is_reachable else "it does not answer"
            )
        elif process.returncode:
            _warn_incomplete(run, to, options, UploadState.load(run, to).error or f"see {_log_file(run, to)}")


def _warn_incomplete(run: Run, tracker: Tracker, options: UploadOptions, reason: str) -> None:
    push = format_command("mmfw", "track", "push", run.path, "--to", tracker.name, *options.arguments)
    _log.warning(
        "%s lacks some of run %s: %s; `%s` sends it %s",
        tracker.name,
        run.id,
        reason,
        push,
        retry_advice(reason),
    )


def follow_run(run: Run, tracker: Tracker, options: UploadOptions) -> int:
    """Send what becomes of a run until mmfw and its worker have ended; return 0 if all is sent."""
    mmfw_ended, is_alone = Event(), Event()
    said = b""

    def wait_for_stop() -> None:
        nonlocal said
        said = os.read(0, 1)
        mmfw_ended.set()
        time.sleep(CTRL_C_TIMEOUT_S + 1)  # by then mmfw has ended it, if it was not ended at once
        if said == _STOP_SOON:
            os._exit(_EXIT_INCOMPLETE)
        if not is_alone.is_set():  # another follower sends this run: it sends this, too
            os._exit(0)

    Thread(target=wait_for_stop, daemon=True).start()
    between, sender = POLL_INTERVAL_S, None
    alone = UploadState.load(run, tracker).upload_lock(
        run, timeout=float("inf")
    )  # another one may follow an earlier command
    with alone, usage_lock(run):
        is_alone.set()
        while True:
            # A worker outlives only a mmfw that was killed, and so says nothing; another one is no concern.
            is_over = mmfw_ended.is_set() and (said != b"" or not is_locked(run.training_lock_file))
            try:
                sizes = [file.stat().st_size for file in run.checkpoints.glob("*.ckpt")]
                # A tracker's package may wait for ever.
                limit = UPLOAD_TIMEOUT_S + max(sizes, default=0) / (1 << 20)
                faulthandler.dump_traceback_later(limit, exit=True)
                sender = sender or Uploader(run, tracker, options)
                at_end = float("inf") if said == _STOP_SOON else 0.0
                sender.upload_new(at_end if is_over else _CHECKPOINT_INTERVAL_S)
                if is_over:
                    sender.close()
                    return 0
                between = POLL_INTERVAL_S
            except Exception as error:  # of the tracker's package, or of the disk
                _log.warning("%s: %s", type(error).__name__, redact_urls(str(error)))
                sent, sender = UploadState.load(run, tracker), None
                sent.error = describe_error(error)
                with suppress(OSError):
                    sent.save(run)
                if is_over:
                    return _EXIT_INCOMPLETE
                between = min(2 * between, _MAX_POLL_INTERVAL_S)
            faulthandler.cancel_dump_traceback_later()
            if mmfw_ended.wait(between):
                time.sleep(1)  # until the worker has ended, too


def main() -> int:
    """Follow what the command line names: a tracker, a run and, as JSON, what is to be sent."""
    name, run, what = sys.argv[1:]
    if sys.platform != "win32":
        os.nice(10)
    with show_log_messages():
        return follow_run(Run(Path(run)), create_tracker(name), UploadOptions(**json.loads(what)))


if __name__ == "__main__":
    sys.exit(main())
