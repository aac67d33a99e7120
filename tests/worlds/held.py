"""Processes that hold a connection: its end proves that they are dead, whatever became of their ids."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_PATIENCE = 300.0

# What a child runs to be proven dead later; it needs ``port``.
HOLD = """
import socket
held = socket.create_connection(("127.0.0.1", int(port)))
"""


class Witness:
    """Accepts the connections of processes that are to die.

    Attributes:
        port: where to connect to.
    """

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._held: list[socket.socket] = []
        self.port = str(server.getsockname()[1])

    def accept(self, count: int = 1) -> None:
        """Wait until so many processes more have connected."""
        for _ in range(count):
            connection, _ = self._server.accept()
            connection.settimeout(_PATIENCE)
            self._held.append(connection)

    def all_dead(self) -> bool:
        """Whether no accepted connection is held any more; waits for it to be so.

        Raises:
            TimeoutError: a process still holds its own.
        """
        for connection in self._held:
            # Windows resets the connections of a process that was killed.
            with contextlib.suppress(ConnectionResetError):
                if connection.recv(1) != b"":
                    return False
        return bool(self._held)

    def close(self) -> None:
        """Close what was accepted."""
        for connection in self._held:
            connection.close()


@contextmanager
def witness() -> Iterator[Witness]:
    """A witness on a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_PATIENCE)
        one = Witness(server)
        try:
            yield one
        finally:
            one.close()
