"""In-memory stub of ClearML's API and file server, with the requests that the real client sends.

Like the real server, it keeps one point for each task, metric, variant and update, and refuses most changes of a task
that has ended.
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
    """Error that the server returns instead of a result."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that close their connection during a request."""


class ClearMLStub:
    """API server and file server.

    Attributes:
        api_url, files_url: URLs of the servers.
        projects, tasks, models: Records by id.
        points: Points by task, metric, variant and update.
        files: Path → content.
        requests: Action and body of each request, in order.
        refused_actions: Actions that are answered by an error.
        dropped_actions: Actions whose connection is closed without an answer.
        received_bytes: Bodies of all API requests.
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
        """Yield a stub that runs inside the ``with`` block; the environment makes clearml use it and ``folder``."""
        stub = cls()
        folder.mkdir(exist_ok=True)
        (folder / "clearml.conf").write_bytes(b"")
        variables = {"API_HOST": stub.api_url, "FILES_HOST": stub.files_url, "WEB_HOST": "http://web.test"}
        variables |= {"API_ACCESS_KEY": "key", "API_SECRET_KEY": "secret", "CACHE_DIR": str(folder / "cache")}
        for name, value in (variables | {"CONFIG_FILE": str(folder / "clearml.conf")}).items():
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
        """Stop both servers."""
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def task(self, name: str = "") -> dict[str, Any]:
        """Return the only task, or the task with this name."""
        [task] = [task for task in self.tasks.values() if not name or task["name"] == name]
        return task

    def series(self, metric: str, variant: str) -> list[tuple[int, int, float]]:
        """Return update, time in milliseconds and value of each point of a series."""
        events = [event for (_, *series, _), event in self.points.items() if series == [metric, variant]]
        return sorted((event["iter"], event["timestamp"], event["value"]) for event in events)

    def hyperparameters(self, section: str) -> dict[str, str]:
        """Return the hyperparameters in a section of the only task."""
        return {name: param["value"] for name, param in self.task()["hyperparams"].get(section, {}).items()}

    def file_content(self, uri: str) -> bytes:
        """Return the content of the file with this URI."""
        return self.files[unquote(urlsplit(uri).path).strip("/")]

    # Actions of the API

    def _auth_login(self, **_: Any) -> Any:
        def encode_part(value: object) -> str:
            return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

        exp = int(time.time()) + 10**6
        payload = {"exp": exp, "api_version": "2.31", "server_version": "2.0.0", "feature_set": "basic"}
        return {"token": f"{encode_part({'alg': 'HS256', 'typ': 'JWT'})}.{encode_part(payload)}.c2lnbmF0dXJl"}

    def _debug_ping(self, **_: Any) -> Any:
        return {"msg": "stub"}

    def _projects_get_all(self, **fields: Any) -> Any:
        return {"projects": _filter_records(self.projects, fields)}

    def _projects_create(self, name: str, **fields: Any) -> Any:
        return {"id": _create_record(self.projects, name=name, **fields)}

    def _projects_get_by_id(self, project: str, **_: Any) -> Any:
        return {"project": self.projects[project]}

    def _projects_update(self, project: str, **fields: Any) -> Any:
        self.projects[project].update(fields)
        return {"updated": 1}

    def _tasks_get_all(self, **fields: Any) -> Any:
        return {"tasks": _filter_records(self.tasks, fields)}

    def _tasks_get_by_id(self, task: str, **_: Any) -> Any:
        if task not in self.tasks:
            raise RequestRefusedError(f"Invalid task id: {task}")
        return {"task": self.tasks[task]}

    def _tasks_create(self, **fields: Any) -> Any:
        parts = ("hyperparams", "configuration", "output", "execution", "script", "runtime")
        return {
            "id": _create_record(self.tasks, **({"status": "created", "tags": []} | {p: {} for p in parts} | fields))
        }

    def _require_changeable_task(self, task: str, *other_statuses: str) -> dict[str, Any]:
        record: dict[str, Any] = self._tasks_get_by_id(task)["task"]
        if record["status"] not in ("created", *other_statuses):
            raise RequestRefusedError(f"Invalid task status: expected=created, status={record['status']}")
        return record

    def _change_status(self, status: str, task: str, force: bool = False, **_: Any) -> Any:
        """Start or end a task; without force, only a new task can start and only a started task can end."""
        record = self._tasks_get_by_id(task)["task"]
        expected = "created" if status == "in_progress" else "in_progress"
        if not force and record["status"] != expected:
            raise RequestRefusedError(f"Invalid task status: expected={expected}, status={record['status']}")
        record["status"] = status
        return {"updated": 1}

    def _tasks_edit(self, task: str, force: bool = False, **fields: Any) -> Any:
        self._require_changeable_task(task, *["in_progress"] * force).update(fields)
        return {"updated": 1}

    def _tasks_edit_hyper_params(
        self, task: str, hyperparams: Any, replace_hyperparams: str = "none", force: bool = False, **_: Any
    ) -> Any:
        sections: Records = {}
        for param in hyperparams:
            sections.setdefault(param["section"], {})[param["name"]] = param
        if sections.keys() == {"properties"}:
            force, record = True, self._tasks_get_by_id(task)["task"]
        else:
            record = self._require_changeable_task(task, *["in_progress"] * force)
        for section, params in sections.items():
            old = {} if replace_hyperparams == "section" else record["hyperparams"].get(section, {})
            record["hyperparams"][section] = old | params
        return {"updated": 1}

    def _tasks_add_or_update_artifacts(self, task: str, artifacts: Any, force: bool = False, **_: Any) -> Any:
        execution = self._require_changeable_task(task, *["in_progress"] * force).setdefault("execution", {})
        new_artifacts = {artifact["key"]: artifact for artifact in artifacts}
        old_artifacts = [old for old in execution.get("artifacts", []) if old["key"] not in new_artifacts]
        execution["artifacts"] = [*old_artifacts, *new_artifacts.values()]
        return {"updated": 1}

    def _tasks_add_or_update_model(self, task: str, name: str, model: str, type: str, **_: Any) -> Any:
        models = self._require_changeable_task(task, "in_progress").setdefault("models", {}).setdefault(type, [])
        models[:] = [*(old for old in models if old["name"] != name), {"name": name, "model": model}]
        return {"updated": 1}

    def _models_get_all(self, **fields: Any) -> Any:
        return {"models": _filter_records(self.models, fields)}

    def _models_create(self, **fields: Any) -> Any:
        return {"id": _create_record(self.models, **fields), "created": True}

    def _events_add_batch(self, lines: list[dict[str, Any]]) -> Any:
        rejected = [event for event in lines if event["task"] not in self.tasks]
        for event in lines:
            if event["type"] == "training_stats_scalar":
                self.points[event["task"], event["metric"], event["variant"], event["iter"]] = event
        errors = {"Invalid task id": len(rejected)} if rejected else {}
        return {"added": len(lines) - len(rejected), "errors": len(rejected), "errors_info": errors}

    def _answer(self, action: str, body: bytes) -> tuple[int, Any]:
        bodies = [json.loads(line) for line in body.splitlines() if line.strip()]
        with self._lock:
            self.requests.append((action, bodies))
            self.received_bytes += body
            try:
                if action in self.refused_actions:
                    raise RequestRefusedError("refused by the test")
                service, _, name = action.removesuffix("_ex").partition(".")
                if service == "tasks" and name in _STATUS_BY_ACTION:
                    data: Any = self._change_status(_STATUS_BY_ACTION[name], **bodies[0])
                elif (method := getattr(self, f"_{service}_{name}", None)) is None:
                    raise RequestRefusedError(f"the stub does not know {action}")
                elif name.endswith("_batch"):
                    data = method(bodies)
                else:
                    data = method(**bodies[0] if bodies else {})
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
                    status, answer = outer._answer(path.rpartition("/")[2], body)
                    self._send(status, json.dumps(answer).encode(), "application/json")
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
    record_id = uuid4().hex
    records[record_id] = {**fields, "id": record_id}
    return record_id


def _filter_records(records: Records, query: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records that match a query by name, tags and other fields."""

    def has_value(record: dict[str, Any], name: str) -> bool:
        expected, actual = query.get(name), record.get(name)
        if not expected:
            return True
        if name == "name":
            return re.search(expected, str(actual)) is not None
        if isinstance(actual, list):
            return {word for word in expected if not word.startswith(("__$", "-"))} <= {*actual}
        return actual in expected

    names = ("id", "name", "tags", "system_tags", "task", "uri", "project")
    return [record for record in records.values() if all(has_value(record, name) for name in names)]
