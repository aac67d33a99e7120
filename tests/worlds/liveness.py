"""Processes that hold a connection: its end proves that they are dead, whatever became of their ids."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_TIMEOUT_SECONDS = 300.0

# What a child runs to be proven dead later; it needs ``port``.
HOLD_CONNECTION_CODE = """
import socket
held = socket.create_connection(("127.0.0.1", int(port)))
"""


class LivenessMonitor:
    """Accepts the connections of processes that are to die."""

    def __init__(self, server: socket.socket, exit_stack: ExitStack) -> None:
        self.port = str(server.getsockname()[1])
        self._server, self._exit_stack = server, exit_stack
        self._connections: list[socket.socket] = []

    def wait_for_processes(self, count: int = 1) -> None:
        """Wait until so many processes more have connected."""
        for _ in range(count):
            self._connections.append(self._exit_stack.enter_context(self._server.accept()[0]))
            self._connections[-1].settimeout(_TIMEOUT_SECONDS)

    def has_only_dead_processes(self) -> bool:
        """Wait until no accepted connection is open; raise TimeoutError if one stays open too long."""
        for connection in self._connections:
            # Windows resets the connections of a process that was killed.
            with suppress(ConnectionResetError):
                if connection.recv(1) != b"":
                    return False
        return bool(self._connections)


@contextmanager
def liveness_monitor() -> Iterator[LivenessMonitor]:
    """A witness on a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as held:
        server.settimeout(_TIMEOUT_SECONDS)
        yield LivenessMonitor(server, held)
