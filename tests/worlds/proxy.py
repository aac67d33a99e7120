"""A server that is stopped and started again: a port that leads to it, or that nobody listens on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Hands connections on to a real server while it is up.

    Attributes:
        url: its own address, which stays the same.
    """

    def __init__(self, target_url: str) -> None:
        self._target_address = ("127.0.0.1", int(target_url.rpartition(":")[2]))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    @contextmanager
    def accept_connections(self) -> Iterator[None]:
        """Within the block somebody listens."""
        with socket.create_server(("127.0.0.1", self._port)) as listening:
            thread = threading.Thread(target=self._accept, args=[listening])
            thread.start()
            try:
                yield
            finally:
                listening.shutdown(socket.SHUT_RDWR)
                thread.join()

    def _accept(self, listener: socket.socket) -> None:
        both: list[socket.socket] = []
        threads: list[threading.Thread] = []
        with suppress(OSError):  # it is stopped
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(self._target_address)
                both += [client, server]
                for source, target in ((client, server), (server, client)):
                    threads.append(threading.Thread(target=_copy, args=[source, target]))
                    threads[-1].start()
        for end in both:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for end in both:
            end.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
