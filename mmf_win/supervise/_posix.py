"""Process trees on Linux and macOS: a session of their own, and in it a keeper that survives its parent."""

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
_KILL_WAIT_SECONDS = (1.0, 0.6)  # seconds; with a poll, less than the two that a second Ctrl+C may take


#: Nothing to wait for: a closed terminal is a signal here.
on_console_close = nullcontext


class ProcessTree:
    """A process and all its descendants; they also end when this process does, however that ends.

    They have a session of their own, so that the terminal's Ctrl+C reaches only this process. Once that is
    gone, ``stop_file`` asks them to leave, and after ``grace`` seconds they are killed.
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
        with ExitStack() as undo:
            self._keeper_socket, theirs = socket.socketpair()
            undo.enter_context(self._keeper_socket)
            with theirs:
                self.process = subprocess.Popen(
                    [*keeper, *command],
                    stdin=theirs.fileno(),
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=inherited_fds,
                    env=env,
                )
            undo.pop_all()

    def has_exited(self, timeout: float) -> bool:
        """Whether it has ended, or does so within some seconds."""
        self._keeper_socket.settimeout(timeout)
        try:
            return not self._keeper_socket.recv(1)
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def terminate(self) -> None:
        """Ask what is in the session to leave, by SIGTERM; the keeper stays until it has."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGTERM)

    def close(self) -> int:
        """End what is left of the tree, without waiting long for what the system cannot end yet.

        Returned is the exit code; negative is the signal that killed it.
        """
        with suppress(OSError), self._keeper_socket:  # it may be closed already
            self._keeper_socket.sendall(b"!")
        for moment in _KILL_WAIT_SECONDS:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(moment)
            # For where nobody is adopted, and for a keeper that was itself killed, stopped, or waits for a
            # process that hangs in the kernel.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.poll()
        return -signal.SIGKILL if code is None else code
