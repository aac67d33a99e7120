"""Proof that processes are dead: each holds a connection, which the system closes when it ends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_TIMEOUT_SECONDS = 300.0

# Code of a process that the monitor watches; the variable ``port`` must be set.
HOLD_CONNECTION_CODE = """
import socket
connection = socket.create_connection(("127.0.0.1", int(port)))
"""


class LivenessMonitor:
    """Monitor of processes that are expected to end.

    Attributes:
        port: Port to which the processes connect.
    """

    def __init__(self, server: socket.socket, exit_stack: ExitStack) -> None:
        self.port = str(server.getsockname()[1])
        self._server, self._exit_stack = server, exit_stack
        self._connections: list[socket.socket] = []

    def wait_for_processes(self, count: int = 1) -> None:
        """Wait until ``count`` more processes have connected."""
        for _ in range(count):
            self._connections.append(self._exit_stack.enter_context(self._server.accept()[0]))
            self._connections[-1].settimeout(_TIMEOUT_SECONDS)

    def wait_until_all_exited(self) -> bool:
        """Wait until all accepted connections are closed; raise TimeoutError if one stays open too long."""
        for connection in self._connections:
            # Windows resets the connections of a killed process.
            with suppress(ConnectionResetError):
                if connection.recv(1) != b"":
                    return False
        return bool(self._connections)


@contextmanager
def liveness_monitor() -> Iterator[LivenessMonitor]:
    """Yield a monitor on a free local port."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as exit_stack:
        server.settimeout(_TIMEOUT_SECONDS)
        yield LivenessMonitor(server, exit_stack)
