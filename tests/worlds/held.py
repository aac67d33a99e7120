"""Processes that hold a connection: its end proves that they are dead, whatever became of their ids."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_PATIENCE = 300.0

# What a child runs to be proven dead later; it needs ``port``.
HOLD = """
import socket
held = socket.create_connection(("127.0.0.1", int(port)))
"""


class Witness:
    """Accepts the connections of processes that are to die."""

    def __init__(self, server: socket.socket, held: ExitStack) -> None:
        self.port = str(server.getsockname()[1])
        self._server, self._stack = server, held
        self._held: list[socket.socket] = []

    def accept(self, count: int = 1) -> None:
        """Wait until so many processes more have connected."""
        for _ in range(count):
            self._held.append(self._stack.enter_context(self._server.accept()[0]))
            self._held[-1].settimeout(_PATIENCE)

    def all_dead(self) -> bool:
        """Whether no accepted connection is held any more; a TimeoutError where one is for too long."""
        for connection in self._held:
            # Windows resets the connections of a process that was killed.
            with suppress(ConnectionResetError):
                if connection.recv(1) != b"":
                    return False
        return bool(self._held)


@contextmanager
def witness() -> Iterator[Witness]:
    """A witness on a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as held:
        server.settimeout(_PATIENCE)
        yield Witness(server, held)
