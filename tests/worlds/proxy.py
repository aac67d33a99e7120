"""Proxy that stops and starts, which makes the server behind it seem down."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Proxy that forwards connections to a real server while it is started.

    Attributes:
        url: Address of the proxy, which stays the same.
    """

    def __init__(self, target_url: str) -> None:
        self._target_address = ("127.0.0.1", int(target_url.rpartition(":")[2]))
        with socket.create_server(("127.0.0.1", 0)) as unused:
            self._port = unused.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    @contextmanager
    def accept_connections(self) -> Iterator[None]:
        """Forward connections inside the ``with`` block; they are refused outside it."""
        with socket.create_server(("127.0.0.1", self._port)) as listener:
            thread = threading.Thread(target=self._accept, args=[listener])
            thread.start()
            try:
                yield
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join()

    def _accept(self, listener: socket.socket) -> None:
        connections: list[socket.socket] = []
        threads: list[threading.Thread] = []
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(self._target_address)
                connections += [client, server]
                for source, target in ((client, server), (server, client)):
                    threads.append(threading.Thread(target=_copy, args=[source, target]))
                    threads[-1].start()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for connection in connections:
            connection.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
