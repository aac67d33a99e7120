"""Supervision of one child process from start to end."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from mmf_win.files import remove
from mmf_win.signals import StopRequests, active_stop_signals

if sys.platform == "win32":
    from mmf_win.supervise._windows import ProcessTree as ProcessTree
    from mmf_win.supervise._windows import on_console_close
else:
    from mmf_win.supervise._posix import ProcessTree as ProcessTree
    from mmf_win.supervise._posix import on_console_close

#: Seconds between two polls of a child.
POLL_SECONDS = 0.2
#: Seconds that a child may take to exit after it has written its outcome.
EXIT_GRACE_SECONDS = 10.0
_ORPHAN_TIMEOUT_FACTOR = 10.0  # times the stop timeout, since no user is waiting for an orphan


@dataclass(frozen=True)
class ChildExit:
    """Exit status of a child process.

    Attributes:
        exit_code: The exit code; a negative one is the signal that killed the child.
        stop_requested: The user requested a stop while the child was running.
        killed: The child was killed by its supervisor.
    """

    exit_code: int
    stop_requested: bool
    killed: bool


@dataclass(frozen=True)
class StopPolicy:
    """Handling of stop requests for a child.

    Attributes:
        timeout: Seconds without progress after a stop request before the child is killed.
        terminate_after: For a child that may ignore the stop file: seconds after the first request until it
            gets SIGTERM, except on Windows. Such a child does not outlive this process.
        on_stop: Called once after the first request.
        count_requests: Returns :attr:`~mmf_win.signals.StopRequests.count`; None to handle signals here.
    """

    timeout: float
    terminate_after: float | None = None
    on_stop: Callable[[], None] = lambda: None
    count_requests: Callable[[], int] | None = None


def run_child(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    stop_file: Path,
    poll_progress: Callable[[], bool],
    stop_policy: StopPolicy,
    outcome_file: Path | None = None,
    inherited_fds: Sequence[int] = (),
) -> ChildExit:
    """Run a command until it exits, and turn Ctrl+C into a graceful stop.

    The first stop signal creates ``stop_file``. A second Ctrl+C (see :mod:`mmf_win.signals`), or a timeout
    without progress after the first, kills the child and its descendants. A child that has written
    ``outcome_file`` is killed if it does not exit within a few seconds.

    If this process is killed, the child is asked to stop by ``stop_file``, and killed after ten times the
    timeout. On Windows it ends immediately.

    Args:
        command: The command of the child.
        log: The file to which the output of the child is appended.
        environment: The environment variables of the child.
        stop_file: The file that asks the child to stop; an existing one is removed.
        poll_progress: Called several times per second; returns whether the child made progress since the
            last call.
        stop_policy: Handling of stop requests.
        outcome_file: The file that the child writes last, if any; an existing one is removed.
        inherited_fds: Descriptors, such as those of locks, that stay open until the child has exited, even if
            this process is killed.

    Returns:
        The exit status.
    """
    for stale_file in filter(None, (stop_file, outcome_file)):
        remove(stale_file)
    count_requests, terminate_after = stop_policy.count_requests, stop_policy.terminate_after
    killed = False
    with (
        log.open("ab") as output,
        count_stop_requests() if count_requests is None else nullcontext(count_requests) as get_stop_count,
    ):
        grace = stop_policy.timeout * _ORPHAN_TIMEOUT_FACTOR if terminate_after is None else 0.0
        tree = ProcessTree(
            command, stop_file=stop_file, grace=grace, output=output, inherited_fds=inherited_fds, env=environment
        )
        try:
            deadline = terminate_at = float("inf")
            stop_sent = False
            while not tree.has_exited(timeout=POLL_SECONDS):
                progressed = poll_progress()
                stops = get_stop_count()
                if outcome_file is not None and outcome_file.exists():
                    deadline = min(deadline, time.monotonic() + EXIT_GRACE_SECONDS)
                elif stops and (progressed or not stop_sent):
                    deadline = time.monotonic() + stop_policy.timeout
                if stops and not stop_sent:
                    stop_sent = True
                    stop_file.touch()
                    stop_policy.on_stop()
                    terminate_at = time.monotonic() + (float("inf") if terminate_after is None else terminate_after)
                if stop_sent and time.monotonic() > terminate_at:
                    terminate_at = float("inf")
                    tree.terminate()
                if stops > 1 or time.monotonic() > deadline:
                    killed = True
                    break
        finally:
            # Also after a normal exit: DataLoader workers may outlive the child that started them.
            code = tree.close()
            remove(stop_file)
        poll_progress()
    return ChildExit(code, get_stop_count() > 0, killed)


@contextmanager
def count_stop_requests() -> Iterator[Callable[[], int]]:
    """Count the stop signals that are not ignored; yield a function that returns the count."""
    requests = StopRequests()
    old = {number: signal.signal(number, lambda signum, _: requests.add(signum)) for number in active_stop_signals()}
    try:
        with on_console_close(requests.add):
            yield lambda: requests.count
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def count_oom_kills(vmstat_file: Path = Path("/proc/vmstat")) -> int | None:
    """Return the number of processes that Linux's out-of-memory killer has killed since boot.

    If the number grows while a process dies of SIGKILL, that process was most likely killed for lack of
    memory. Processes in containers count, too. https://docs.kernel.org/filesystems/proc.html

    Args:
        vmstat_file: The kernel's file of counters.

    Returns:
        The number, or None if it is unknown.
    """
    with suppress(OSError, ValueError):
        if match := re.search(r"^oom_kill (\d+)$", vmstat_file.read_text(encoding="ascii"), re.MULTILINE):
            return int(match[1])
    return None
