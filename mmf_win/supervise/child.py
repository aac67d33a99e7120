"""One child process from start to end."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from mmf_win.supervise.processes import Tree, stop_signals

_POLL = 0.1


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
    on_stop: Callable[[], None],
    patience: float = 30.0,
) -> Ended:
    """Run ``command`` to its end, with the user's Ctrl+C made graceful.

    The first Ctrl+C (or SIGTERM, or a closed terminal) writes ``stop_file``; the second one, or ``patience``
    seconds without progress after the first, kills the child and its descendants.

    Args:
        command: the program and its arguments.
        log: the child's whole output is appended here.
        environment: the child's environment.
        stop_file: the file that asks the child to leave.
        watch: called several times a second; True when the child made progress since the last call.
        on_stop: called once, when the user asked for a stop.
        patience: seconds.

    Returns:
        How it ended.
    """
    stop_file.unlink(missing_ok=True)
    presses = 0
    killed = False

    def press(_signal: int, _frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1

    with log.open("ab") as output, _signals_to(press):
        tree = Tree(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        try:
            deadline = float("inf")
            asked = False
            while not _ended(tree.process):
                progressed = watch()
                if presses and not asked:
                    asked = True
                    stop_file.touch()
                    on_stop()
                if asked and (progressed or deadline == float("inf")):
                    deadline = time.monotonic() + patience
                if presses > 1 or time.monotonic() > deadline:
                    killed = True
                    break
        finally:
            # Also after an ordinary end: a DataLoader's workers may outlive the child that started them.
            tree.close()
            stop_file.unlink(missing_ok=True)
        watch()
    return Ended(tree.process.returncode, presses > 0, killed)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended, or does within a moment."""
    try:
        process.wait(_POLL)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextmanager
def _signals_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let ``handler`` have the signals that ask for an end, and restore the old ones afterwards."""
    before = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
