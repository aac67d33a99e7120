"""A web server on this machine that serves files as real ones do, and fails as they do."""

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
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class PlannedResponse:
    """The form of the next response; a fault changes it."""

    body: bytes
    status: int
    headers: dict[str, str | None] = field(default_factory=dict)  # None leaves one out
    max_sent_bytes: int | None = None  # send only so many bytes of the body
    stall_event: threading.Event | None = None  # wait for this after what is sent, instead of ending


Fault = Callable[[PlannedResponse], None]


class WebServer:
    """Serves ``files`` with ranges and entity tags.

    Attributes:
        url: of the folder that holds the files.
        faults: what goes wrong with the next GETs, one each; None for an answer that is right.
        etags: whether it names the version of a file.
        ranges: whether it sends parts.
        headers: sent with every answer.
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
        """A server that runs inside the ``with`` block; ``_`` in a name stands for a dot."""
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
        """The requests for content."""
        return [asked for asked in self.requests if asked.method == "GET"]

    def _handler(outer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = ReceivedRequest(self.command, self.path, dict(self.headers))
                outer.requests.append(asked)
                send_body = self.command == "GET"
                content = outer.files.get(self.path.lstrip("/"))
                answer = PlannedResponse(b"", 404) if content is None else outer._plan_response(content, asked.headers)
                if content is not None and send_body and outer.faults and (fault := outer.faults.pop(0)):
                    fault(answer)
                self.send_response(answer.status)
                length = {"Content-Length": str(len(answer.body))}
                for name, value in {**outer.headers, **length, **answer.headers}.items():
                    if value is not None:
                        self.send_header(name, value)
                self.end_headers()
                if send_body:
                    self.wfile.write(answer.body[: answer.max_sent_bytes])
                    if answer.stall_event is not None:
                        self.wfile.flush()
                        answer.stall_event.wait()

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def _plan_response(self, content: bytes, headers: dict[str, str]) -> PlannedResponse:
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        known = {"ETag": tag} if self.etags else {}
        wanted = re.fullmatch(r"bytes=(\d+)-", headers.get("Range", ""))
        if not (self.ranges and wanted) or headers.get("If-Range", tag) != tag:
            return PlannedResponse(content, 200, {**known})
        start = int(wanted[1])
        if start >= len(content):
            return PlannedResponse(b"", 416, {"Content-Range": f"bytes */{len(content)}"})
        place = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return PlannedResponse(content[start:], 206, {**known, "Content-Range": place})


def drop_connection_after(byte_count: int) -> Fault:
    """The connection ends after so many bytes."""
    return lambda answer: vars(answer).update(max_sent_bytes=byte_count)


def stall_after(server: WebServer, byte_count: int) -> Fault:
    """Nothing comes any more after so many bytes, and the connection stays."""
    return lambda answer: vars(answer).update(max_sent_bytes=byte_count, stall_event=server.shutdown_event)


def respond_with(status: int, body: bytes = b"", **headers: str | None) -> Fault:
    """Another answer altogether; ``_`` in a header's name stands for a hyphen."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda answer: vars(answer).update(status=status, body=body, headers=named)


login_page = respond_with(200, b"<html>Please log in</html>", Content_Type="text/html; charset=utf-8")
"""A page instead of the file, as a hotel's network sends it, with the status 200."""


def declare_length(length: int) -> Fault:
    """The length that is announced is wrong."""
    return lambda answer: answer.headers.update({"Content-Length": str(length)})


def send_wrong_range(answer: PlannedResponse) -> None:
    """A part that begins elsewhere than was asked for."""
    answer.status = 206
    answer.headers["Content-Range"] = f"bytes 1-{len(answer.body)}/{len(answer.body) + 1}"
