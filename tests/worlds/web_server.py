"""Local web server that serves files, and fails, like real servers."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class ReceivedRequest(NamedTuple):
    """Request that the server received."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class PlannedResponse:
    """Response that a fault can change before it is sent."""

    body: bytes
    status: int
    headers: dict[str, str | None] = field(default_factory=dict)  # None omits a header
    max_sent_bytes: int | None = None  # None sends the complete body
    stall_event: threading.Event | None = None  # wait for this event before closing the connection


Fault = Callable[[PlannedResponse], None]


class WebServer:
    """Server of ``files`` with ranges and entity tags.

    Attributes:
        url: URL of the folder of the files.
        faults: Faults of the next GET requests, one each; None for a correct response.
        etags: Whether responses have entity tags.
        ranges: Whether range requests are supported.
        headers: Headers of each response.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.faults: list[Fault | None] = []
        self.etags = self.ranges = True
        self.headers: dict[str, str] = {}
        self.requests: list[ReceivedRequest] = []
        self.shutdown_event = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    @classmethod
    @contextmanager
    def serving(cls, **files: bytes) -> Iterator[WebServer]:
        """Yield a server that runs inside the ``with`` block; ``_`` in a file name stands for a dot."""
        server = cls({name.replace("_", "."): content for name, content in files.items()})
        thread = threading.Thread(target=server._http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown_event.set()
            server._http.shutdown()
            thread.join()
            server._http.server_close()

    @property
    def content_requests(self) -> list[ReceivedRequest]:
        """Return the GET requests."""
        return [request for request in self.requests if request.method == "GET"]

    def _handler(outer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                received = ReceivedRequest(self.command, self.path, dict(self.headers))
                outer.requests.append(received)
                send_body = self.command == "GET"
                content = outer.files.get(self.path.lstrip("/"))
                response = (
                    PlannedResponse(b"", 404) if content is None else outer._plan_response(content, received.headers)
                )
                if content is not None and send_body and outer.faults and (fault := outer.faults.pop(0)):
                    fault(response)
                self.send_response(response.status)
                length = {"Content-Length": str(len(response.body))}
                for name, value in {**outer.headers, **length, **response.headers}.items():
                    if value is not None:
                        self.send_header(name, value)
                self.end_headers()
                if send_body:
                    self.wfile.write(response.body[: response.max_sent_bytes])
                    if response.stall_event is not None:
                        self.wfile.flush()
                        response.stall_event.wait()

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def _plan_response(self, content: bytes, headers: dict[str, str]) -> PlannedResponse:
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        tag_header = {"ETag": tag} if self.etags else {}
        range_match = re.fullmatch(r"bytes=(\d+)-", headers.get("Range", ""))
        if not (self.ranges and range_match) or headers.get("If-Range", tag) != tag:
            return PlannedResponse(content, 200, {**tag_header})
        start = int(range_match[1])
        if start >= len(content):
            return PlannedResponse(b"", 416, {"Content-Range": f"bytes */{len(content)}"})
        content_range = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return PlannedResponse(content[start:], 206, {**tag_header, "Content-Range": content_range})


def drop_connection_after(byte_count: int) -> Fault:
    """Return a fault that closes the connection after ``byte_count`` bytes."""
    return lambda response: vars(response).update(max_sent_bytes=byte_count)


def stall_after(server: WebServer, byte_count: int) -> Fault:
    """Return a fault that sends ``byte_count`` bytes and then keeps the connection open without sending more."""
    return lambda response: vars(response).update(max_sent_bytes=byte_count, stall_event=server.shutdown_event)


def respond_with(status: int, body: bytes = b"", **headers: str | None) -> Fault:
    """Return a fault that replaces the response; ``_`` in the name of a header stands for a hyphen."""
    response_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda response: vars(response).update(status=status, body=body, headers=response_headers)


login_page = respond_with(200, b"<html>Please log in</html>", Content_Type="text/html; charset=utf-8")
"""Fault that sends a page with status 200 instead of the file, like the login page of a hotel network."""


def declare_length(length: int) -> Fault:
    """Return a fault that sends a wrong Content-Length."""
    return lambda response: response.headers.update({"Content-Length": str(length)})


def send_wrong_range(response: PlannedResponse) -> None:
    """Change a response to a range that starts at another byte than the requested one."""
    response.status = 206
    response.headers["Content-Range"] = f"bytes 1-{len(response.body)}/{len(response.body) + 1}"
