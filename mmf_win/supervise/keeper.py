"""Stands between mmfw and a worker on Linux and macOS, so that nothing of the worker survives.

Run as a script, ``python -I -S keeper.py STOP_FILE GRACE COMMAND...``. It needs the standard library alone
and runs nobody else's code, so unlike the worker it cannot hang. Its standard input is a socket whose other
end only mmfw holds:

- a byte from it: mmfw wants the worker and all its descendants dead, now;
- its end: mmfw itself is gone, however it died. The stop file asks the worker to save and leave, and after
  GRACE seconds it is killed.

On Linux the keeper adopts what the worker leaves behind, even in sessions of its own, and ends it; elsewhere
its process group is all that can be held together. It ends as the worker did: with its exit code, or by its
signal.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

assert sys.platform != "win32"

# https://man7.org/linux/man-pages/man2/pr_set_child_subreaper.2const.html
_PR_SET_CHILD_SUBREAPER = 36
_STDIN = 0


def main(stop_file: Path, grace: float, command: list[str]) -> None:
    """Run ``command``, and end when nothing of it is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        # They may be sent to every process of a job. Those that mmfw ignores, the worker is to ignore, too.
        # The others are not ignored here, since the worker would inherit that.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The worker, too, holds what mmfw wants to be held until its end.
    worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, close_fds=False)
    ended, orphaned = Event(), Event()

    def watch_parent() -> None:
        if not os.read(_STDIN, 1):
            orphaned.set()
            with suppress(OSError):
                stop_file.touch()
            ended.wait(grace)
        worker.kill()

    Thread(target=watch_parent, daemon=True).start()
    code = worker.wait()
    ended.set()
    _kill_descendants()
    if orphaned.is_set():
        os.killpg(0, signal.SIGKILL)
    _exit_like(code)


def _kill_descendants() -> None:
    """End this process's children, and theirs as soon as they are adopted."""
    while True:
        for pid in _child_pids():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _child_pids() -> Iterator[int]:
    """The children of this process; none where there is no /proc."""
    mine = str(os.getpid()).encode()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # pid (name) state parent …, where the name may hold anything
            _, parent, *_ = stat.read_bytes().rpartition(b")")[2].split()
            if parent == mine:
                yield int(stat.parent.name)


def _exit_like(code: int) -> None:
    """End with the exit code, or by the signal, that Popen tells of."""
    if code >= 0:
        sys.exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker has left its own, where that is wanted
    with suppress(OSError):  # SIGKILL has no disposition
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
