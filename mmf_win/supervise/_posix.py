"""Process trees on Linux and macOS: a new session with a keeper process that survives this process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import IO

assert sys.platform != "win32"

_KEEPER_SCRIPT = Path(__file__).with_name("keeper.py")
_KILL_WAIT_SECONDS = (1.0, 0.6)  # with one poll, less than the two seconds that a second Ctrl+C may take


#: Does nothing, since a closed terminal sends a signal on these systems.
on_console_close = nullcontext


class ProcessTree:
    """A process and all its descendants, which also end when this process dies.

    They are in a new session, so that Ctrl+C in the terminal reaches only this process. If this process dies,
    ``stop_file`` is created, and the tree is killed after ``grace`` seconds.

    Args:
        command: The command of the process.
        stop_file: The file that asks the process to stop.
        grace: Seconds to wait for the process after this process died.
        output: The file for stdout and stderr.
        inherited_fds: Descriptors that the tree inherits.
        env: The environment variables.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stop_file: Path,
        grace: float,
        output: IO[bytes],
        inherited_fds: Sequence[int],
        env: Mapping[str, str],
    ) -> None:
        keeper = [sys.executable, "-I", "-S", str(_KEEPER_SCRIPT), str(stop_file), str(grace)]
        with ExitStack() as cleanup:
            self._keeper_socket, child_socket = socket.socketpair()
            cleanup.enter_context(self._keeper_socket)
            with child_socket:
                self.process = subprocess.Popen(
                    [*keeper, *command],
                    stdin=child_socket.fileno(),
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=inherited_fds,
                    env=env,
                )
            cleanup.pop_all()

    def has_exited(self, timeout: float) -> bool:
        """Return whether the process exits within ``timeout`` seconds."""
        self._keeper_socket.settimeout(timeout)
        try:
            return not self._keeper_socket.recv(1)
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def terminate(self) -> None:
        """Send SIGTERM to the session; the keeper ignores it and waits for the process."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGTERM)

    def close(self) -> int:
        """Kill the rest of the tree, with a short wait for processes that the system cannot end yet.

        Returns:
            The exit code; a negative one is the signal that killed the process.
        """
        with suppress(OSError), self._keeper_socket:  # it may be closed already
            self._keeper_socket.sendall(b"!")
        for seconds in _KILL_WAIT_SECONDS:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
            # Needed on systems without subreapers, and if the keeper was killed or stopped, or waits for a
            # process that hangs in the kernel.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.poll()
        return -signal.SIGKILL if code is None else code
