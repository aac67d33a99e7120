"""Process between mmfw and a worker on Linux and macOS that ends all processes of the worker.

Run as a script: ``python -I -S keeper.py STOP_FILE GRACE COMMAND...``. It uses only the standard library and
runs no code of others, so that it cannot hang as a worker can. Its stdin is a socket; only mmfw has the other
end:

- A byte means that mmfw wants the worker and all its descendants to be killed immediately.
- The end of the stream means that mmfw has died. The stop file asks the worker to save and exit, and it is
  killed after GRACE seconds.

On Linux the keeper is a subreaper: it adopts orphaned descendants of the worker, even in other sessions, and
kills them. On other systems it can only kill the process group. It exits like the worker, with its exit code
or by its signal.
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
    """Run ``command`` and end when none of its processes is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        # These signals may be sent to every process of a job. A signal that mmfw ignores stays ignored in the
        # worker. The others get an empty handler, since the worker would inherit SIG_IGN.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The worker inherits the descriptors, such as locks, that must stay open until it exits.
    worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, close_fds=False)
    worker_exited, orphaned = Event(), Event()

    def watch_parent() -> None:
        if not os.read(_STDIN, 1):
            orphaned.set()
            with suppress(OSError):
                stop_file.touch()
            worker_exited.wait(grace)
        worker.kill()

    Thread(target=watch_parent, daemon=True).start()
    code = worker.wait()
    worker_exited.set()
    _kill_descendants()
    if orphaned.is_set():
        os.killpg(0, signal.SIGKILL)
    _exit_like(code)


def _kill_descendants() -> None:
    """Kill this process's children, and further descendants as soon as they are adopted."""
    while True:
        for pid in _child_pids():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _child_pids() -> Iterator[int]:
    """Yield the PIDs of this process's children; none if there is no /proc."""
    own_pid = str(os.getpid()).encode()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # pid (name) state parent …; the name may contain any characters
            _, parent, *_ = stat.read_bytes().rpartition(b")")[2].split()
            if parent == own_pid:
                yield int(stat.parent.name)


def _exit_like(code: int) -> None:
    """Exit with a return code of Popen: an exit code or, if negative, a signal."""
    if code >= 0:
        sys.exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker has written its own core dump, if enabled
    with suppress(OSError):  # SIGKILL cannot have a handler
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
