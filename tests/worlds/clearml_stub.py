"""A stub of ClearML's API and file server, for what its real client asks of them; it keeps all in memory.

Like the real server it keeps one point for each task, metric, variant and update, and refuses to change most
of a task that has ended.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pytest

Records = dict[str, dict[str, Any]]
_STATUS_BY_ACTION = {"completed": "completed", "stopped": "stopped", "failed": "failed", "started": "in_progress"}


class RequestRefusedError(Exception):
    """An error that the server returns instead of an answer."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves in the midst of something has its reasons."""


class ClearMLStub:
    """Both servers.

    Attributes:
        api_url, files_url: their addresses.
        projects, tasks, models: by their ids.
        points: by task, metric, variant and update.
        files: path → content.
        requests: action and body of each request, in order.
        refused_actions: actions that are answered by an error.
        dropped_actions: actions whose connection is closed instead.
        received_bytes: all that came, as it came.
    """

    def __init__(self) -> None:
        self.projects: Records = {}
        self.tasks: Records = {}
        self.models: Records = {}
        self.points: dict[tuple[str, str, str, int], dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, Any]] = []
        self.refused_actions: set[str] = set()
        self.dropped_actions: set[str] = set()
        self.received_bytes = b""
        self._lock = threading.Lock()
        self._servers = [_Server(("127.0.0.1", 0), self._handler(kind)) for kind in ("api", "files")]
        self.api_url, self.files_url = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)

    @classmethod
    @contextmanager
    def serving(cls, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClearMLStub]:
        """One inside the ``with`` block, which the environment names; clearml keeps to ``folder``."""
        stub = cls()
        folder.mkdir(exist_ok=True)
        (folder / "clearml.conf").write_bytes(b"")
        told = {"API_HOST": stub.api_url, "FILES_HOST": stub.files_url, "WEB_HOST": "http://web.test"}
        told |= {"API_ACCESS_KEY": "key", "API_SECRET_KEY": "secret", "CACHE_DIR": str(folder / "cache")}
        for name, value in (told | {"CONFIG_FILE": str(folder / "clearml.conf")}).items():
            monkeypatch.setenv(f"CLEARML_{name}", value)
        threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in stub._servers]
        for thread in threads:
            thread.start()
        try:
            yield stub
        finally:
            stub.stop_servers()
            for thread in threads:
                thread.join()

    def stop_servers(self) -> None:
        """Nothing answers any more."""
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def task(self, name: str = "") -> dict[str, Any]:
        """The only task, or the one of a name."""
        [task] = [task for task in self.tasks.values() if not name or task["name"] == name]
        return task

    def series(self, metric: str, variant: str) -> list[tuple[int, int, float]]:
        """Update, time in milliseconds and value of each point of a series."""
        found = [event for (_, *of, _), event in self.points.items() if of == [metric, variant]]
        return sorted((event["iter"], event["timestamp"], event["value"]) for event in found)

    def hyperparameters(self, section: str) -> dict[str, str]:
        """Return the hyperparameters in a section of the only task."""
        return {name: param["value"] for name, param in self.task()["hyperparams"].get(section, {}).items()}

    def file_content(self, uri: str) -> bytes:
        """The content at an address."""
        return self.files[unquote(urlsplit(uri).path).strip("/")]

    # What is asked of the API

    def _auth_login(self, **_: Any) -> Any:
        def part(value: object) -> str:
            return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

        exp = int(time.time()) + 10**6
        told = {"exp": exp, "api_version": "2.31", "server_version": "2.0.0", "feature_set": "basic"}
        return {"token": f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(told)}.c2lnbmF0dXJl"}

    def _debug_ping(self, **_: Any) -> Any:
        return {"msg": "stub"}

    def _projects_get_all(self, **what: Any) -> Any:
        return {"projects": _filter_records(self.projects, what)}

    def _projects_create(self, name: str, **what: Any) -> Any:
        return {"id": _create_record(self.projects, name=name, **what)}

    def _projects_get_by_id(self, project: str, **_: Any) -> Any:
        return {"project": self.projects[project]}

    def _projects_update(self, project: str, **what: Any) -> Any:
        self.projects[project].update(what)
        return {"updated": 1}

    def _tasks_get_all(self, **what: Any) -> Any:
        return {"tasks": _filter_records(self.tasks, what)}

    def _tasks_get_by_id(self, task: str, **_: Any) -> Any:
        if task not in self.tasks:
            raise RequestRefusedError(f"Invalid task id: {task}")
        return {"task": self.tasks[task]}

    def _tasks_create(self, **what: Any) -> Any:
        parts = ("hyperparams", "configuration", "output", "execution", "script", "runtime")
        return {"id": _create_record(self.tasks, **({"status": "created", "tags": []} | {p: {} for p in parts} | what))}

    def _require_changeable_task(self, task: str, *other_statuses: str) -> dict[str, Any]:
        found: dict[str, Any] = self._tasks_get_by_id(task)["task"]
        if found["status"] not in ("created", *other_statuses):
            raise RequestRefusedError(f"Invalid task status: expected=created, status={found['status']}")
        return found

    def _change_status(self, status: str, task: str, force: bool = False, **_: Any) -> Any:
        """Start or end a task; unless forced, only one that is new can start, and only a started one end."""
        found = self._tasks_get_by_id(task)["task"]
        expected = "created" if status == "in_progress" else "in_progress"
        if not force and found["status"] != expected:
            raise RequestRefusedError(f"Invalid task status: expected={expected}, status={found['status']}")
        found["status"] = status
        return {"updated": 1}

    def _tasks_edit(self, task: str, force: bool = False, **what: Any) -> Any:
        self._require_changeable_task(task, *["in_progress"] * force).update(what)
        return {"updated": 1}

    def _tasks_edit_hyper_params(
        self, task: str, hyperparams: Any, replace_hyperparams: str = "none", force: bool = False, **_: Any
    ) -> Any:
        sections: Records = {}
        for param in hyperparams:
            sections.setdefault(param["section"], {})[param["name"]] = param
        if sections.keys() == {"properties"}:
            force, there = True, self._tasks_get_by_id(task)["task"]
        else:
            there = self._require_changeable_task(task, *["in_progress"] * force)
        for section, params in sections.items():
            old = {} if replace_hyperparams == "section" else there["hyperparams"].get(section, {})
            there["hyperparams"][section] = old | params
        return {"updated": 1}

    def _tasks_add_or_update_artifacts(self, task: str, artifacts: Any, force: bool = False, **_: Any) -> Any:
        there = self._require_changeable_task(task, *["in_progress"] * force).setdefault("execution", {})
        new = {artifact["key"]: artifact for artifact in artifacts}
        kept = [old for old in there.get("artifacts", []) if old["key"] not in new]
        there["artifacts"] = [*kept, *new.values()]
        return {"updated": 1}

    def _tasks_add_or_update_model(self, task: str, name: str, model: str, type: str, **_: Any) -> Any:
        there = self._require_changeable_task(task, "in_progress").setdefault("models", {}).setdefault(type, [])
        there[:] = [*(old for old in there if old["name"] != name), {"name": name, "model": model}]
        return {"updated": 1}

    def _models_get_all(self, **what: Any) -> Any:
        return {"models": _filter_records(self.models, what)}

    def _models_create(self, **what: Any) -> Any:
        return {"id": _create_record(self.models, **what), "created": True}

    def _events_add_batch(self, lines: list[dict[str, Any]]) -> Any:
        unknown = [event for event in lines if event["task"] not in self.tasks]
        for event in lines:
            if event["type"] == "training_stats_scalar":
                self.points[event["task"], event["metric"], event["variant"], event["iter"]] = event
        told = {"Invalid task id": len(unknown)} if unknown else {}
        return {"added": len(lines) - len(unknown), "errors": len(unknown), "errors_info": told}

    def _answer(self, action: str, body: bytes) -> tuple[int, Any]:
        said = [json.loads(line) for line in body.splitlines() if line.strip()]
        with self._lock:
            self.requests.append((action, said))
            self.received_bytes += body
            try:
                if action in self.refused_actions:
                    raise RequestRefusedError("this is refused")
                service, _, name = action.removesuffix("_ex").partition(".")
                if service == "tasks" and name in _STATUS_BY_ACTION:
                    data: Any = self._change_status(_STATUS_BY_ACTION[name], **said[0])
                elif (how := getattr(self, f"_{service}_{name}", None)) is None:
                    raise RequestRefusedError(f"the stub does not know {action}")
                elif name.endswith("_batch"):
                    data = how(said)
                else:
                    data = how(**said[0] if said else {})
            except RequestRefusedError as refusal:
                return 400, {"meta": {"result_code": 400, "result_msg": str(refusal)}}
        return 200, {"meta": {"result_code": 200, "result_msg": "OK"}, "data": data}

    def _handler(outer, kind: str) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = unquote(urlsplit(self.path).path).strip("/")
                if path.rpartition("/")[2] in outer.dropped_actions:
                    self.close_connection = True
                elif kind == "api":
                    status, told = outer._answer(path.rpartition("/")[2], body)
                    self._send(status, json.dumps(told).encode(), "application/json")
                elif self.command == "POST":
                    head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
                    for part in message_from_bytes(head + body).get_payload():  # type: ignore[union-attr]
                        name = part.get_param("name", header="content-disposition")  # type: ignore[union-attr]
                        outer.files[str(name).strip("/")] = part.get_payload(decode=True)  # type: ignore[assignment,union-attr]
                    refused = "files" in outer.refused_actions
                    self._send(500 if refused else 200, b"[]", "application/json")
                elif path in outer.files:
                    self._send(200, outer.files[path], "application/octet-stream")
                else:
                    self._send(404, b"", "text/plain")

            do_POST = do_GET

            def do_HEAD(self) -> None:
                self.do_GET()

            def _send(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def _create_record(records: Records, **fields: Any) -> str:
    made = uuid4().hex
    records[made] = {**fields, "id": made}
    return made


def _filter_records(records: Records, query: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items with these names, tags and so on."""

    def has_value(record: dict[str, Any], name: str) -> bool:
        wanted, there = query.get(name), record.get(name)
        if not wanted:
            return True
        if name == "name":
            return re.search(wanted, str(there)) is not None
        if isinstance(there, list):
            return {word for word in wanted if not word.startswith(("__$", "-"))} <= {*there}
        return there in wanted

    names = ("id", "name", "tags", "system_tags", "task", "uri", "project")
    return [thing for thing in records.values() if all(has_value(thing, name) for name in names)]
