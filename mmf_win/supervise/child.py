"""One child process from start to end."""

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
from mmf_win.signals import StopRequests, heard_signals

if sys.platform == "win32":
    from mmf_win.supervise._windows import Tree as Tree
    from mmf_win.supervise._windows import window_closed
else:
    from mmf_win.supervise._posix import Tree as Tree
    from mmf_win.supervise._posix import window_closed

#: The seconds between two looks at a child.
POLL = 0.2
#: The seconds that a child may take to exit after it has written its outcome.
FAREWELL = 10.0
_ORPHANS_PATIENCE = 10.0  # times that of a user, since nobody waits at a prompt for an orphan


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes:
        code: its exit code; negative is the signal that killed it.
        stop_requested: the user asked for a stop while it ran.
        killed: it had to be killed.
    """

    code: int
    stop_requested: bool
    killed: bool


def run_child(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    stop_file: Path,
    watch: Callable[[], bool],
    patience: float,
    exit_file: Path | None = None,
    on_stop: Callable[[], None] = lambda: None,
    terminate: float | None = None,
    held: Sequence[int] = (),
    stops: Callable[[], int] | None = None,
) -> Ended:
    """Run ``command`` to its end, with the user's Ctrl+C made graceful.

    The first stop signal writes ``stop_file``; a second Ctrl+C (see :mod:`mmf_win.signals`), or ``patience``
    seconds without progress after the first, kills the child and its descendants. A child that has written
    ``exit_file`` has nothing left to do, and is killed when it has not left a few seconds later.

    When this process is killed, the child is asked to leave, too, and is killed when it has not left after
    ten times ``patience``; on Windows it ends immediately.

    Args:
        log: the child's output is appended here.
        watch: called several times a second; True when the child made progress since the last call.
        exit_file: the file by which it says how it ended; None for a child that has none.
        on_stop: called once, when the user asked for a stop.
        terminate: for a child that may know no stop file: seconds after the first stop, when it gets SIGTERM
            if it is still there. Windows has no such signal. It does not outlive this process.
        held: descriptors, of a lock for example, that stay open until the child has ended, even when this
            process is killed.
        stops: returns :attr:`~mmf_win.signals.StopRequests.count`; None to count here.
    """
    for of_earlier in filter(None, (stop_file, exit_file)):
        remove(of_earlier)
    killed = False
    with log.open("ab") as output, stop_requests() if stops is None else nullcontext(stops) as presses:
        grace = patience * _ORPHANS_PATIENCE if terminate is None else 0.0
        tree = Tree(command, stop_file=stop_file, grace=grace, output=output, held=held, env=environment)
        try:
            deadline = terminate_at = float("inf")
            asked = False
            while not tree.ended(within=POLL):
                progressed = watch()
                pressed = presses()
                if exit_file is not None and exit_file.exists():
                    deadline = min(deadline, time.monotonic() + FAREWELL)
                elif pressed and (progressed or not asked):
                    deadline = time.monotonic() + patience
                if pressed and not asked:
                    asked = True
                    stop_file.touch()
                    on_stop()
                    terminate_at = time.monotonic() + (float("inf") if terminate is None else terminate)
                if asked and time.monotonic() > terminate_at:
                    terminate_at = float("inf")
                    tree.terminate()
                if pressed > 1 or time.monotonic() > deadline:
                    killed = True
                    break
        finally:
            # Also after an ordinary end: a DataLoader's workers may outlive the child that started them.
            code = tree.close()
            remove(stop_file)
        watch()
    return Ended(code, presses() > 0, killed)


@contextmanager
def stop_requests() -> Iterator[Callable[[], int]]:
    """Count the stop signals that are not ignored; yield what returns the count."""
    requests = StopRequests()
    before = {number: signal.signal(number, lambda got, _: requests.add(got)) for number in heard_signals()}
    try:
        with window_closed(requests.add):
            yield lambda: requests.count
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def oom_kills(counters: Path = Path("/proc/vmstat")) -> int | None:
    """Return how many processes Linux has killed for lack of memory since it started; None if unknown.

    If that grows, a process that died by SIGKILL meanwhile was most likely one. Those inside a container
    count, too. https://docs.kernel.org/filesystems/proc.html

    Args:
        counters: the file in which the kernel counts.
    """
    with suppress(OSError, ValueError):
        if found := re.search(r"^oom_kill (\d+)$", counters.read_text(encoding="ascii"), re.MULTILINE):
            return int(found[1])
    return None
