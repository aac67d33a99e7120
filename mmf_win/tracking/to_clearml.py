"""Sends to a ClearML server, which https://clear.ml describes.

It asks the server by clearml's session. A ``Task`` of that package hooks into click, whose arguments may hold
a password, sends what git finds changed, and only logs what a server refuses. In clearml's offline mode the
folder is therefore written here that ``Task.import_offline_session`` takes.

The server keeps a point of the same series and update once, so sending one again does nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from mmf_win.errors import UsageError
from mmf_win.files import link_or_copy, read_json, write_json
from mmf_win.locking import file_lock
from mmf_win.paths import expand_home
from mmf_win.tracking.tracker import OFFLINE, PROJECT, About, Point, Tracker, require_no_id

_SERVER, _VERSION, _TAGS = "https://api.clear.ml", "2.13", "properties"
_API_SERVER = re.compile(r'^[^#\n]*\bapi_server\s*[:=]\s*"?(http[^"\s,}]+)', re.MULTILINE)
_KEY = re.compile(r'^[^#\n]*\baccess_key"?\s*[:=]\s*"?([^"\s,}]+)', re.MULTILINE)
_STATES = {"running": "started", "done": "completed", "interrupted": "stopped", "killed": "stopped"}
_TRIES = dict.fromkeys(("total", "connect", "read", "redirect", "status"), 1)
_CONFIG = {
    "api": {"http": {"retries": _TRIES, "wait_on_maintenance_forever": False}},
    "sdk": {"http": {"download": {"max_retries": 1}}, "development": {"report_use_subprocess": False}},
}


class Connection(Tracker):
    """A connection to ClearML."""

    name = "clearml"
    variable = "CLEARML_API_HOST"
    id_variable = "CLEARML_TASK_ID"
    probe = ("/debug.ping", None, {"meta"})

    def __new__(cls) -> Connection:
        told = os.environ.get("CLEARML_OFFLINE_MODE", "").lower()
        off = told not in ("", "0", "f", "false", "n", "no", "off")
        return super().__new__(_Offline if off else cls)

    def __init__(self) -> None:
        self.server = os.environ.get(self.variable) or _configured(_API_SERVER) or _SERVER
        self.project = os.environ.get("CLEARML_PROJECT") or PROJECT
        self._session: Any = None
        self._task = ""

    def require_settings(self) -> bool:
        given = map(os.environ.get, ("CLEARML_API_ACCESS_KEY", "CLEARML_AUTH_TOKEN"))
        if not (any(given) or _configured(_KEY)):
            hint = "run `clearml-init`, or set CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY"
            raise UsageError(f"there is no ClearML API key for {self.host}", hint=hint)
        return True

    def open(self, about: About) -> tuple[str, str]:
        from clearml.backend_api import Session

        named = self.ask("projects.get_all", name=f"^{re.escape(self.project)}$")["projects"]
        project = (named or [self.ask("projects.create", name=self.project, description="")])[0]["id"]
        self._task = self._found(project, about)
        self.state("running", about.created)  # for an ended one refuses most
        web = self.host
        with suppress(ValueError):  # nothing says where people look
            web = Session.get_app_server_host()
        return self._task, f"{web.rstrip('/')}/projects/*/experiments/{self._task}"

    def describe(self, settings: Mapping[str, str], tags: Mapping[str, str]) -> None:
        for section, params in _sections(settings, tags).items():
            how = "none" if section == _TAGS else "section"  # the former are the user's, too
            self._do("edit_hyper_params", hyperparams=[*params.values()], replace_hyperparams=how, force=True)

    def points(self, points: Sequence[Point]) -> None:
        events = [_event(self._task, point) for point in points]
        for answer in self._session.send_request_batch("events", "add_batch", _VERSION, json=events):
            if wrong := _said(answer).get("errors_info"):
                raise RuntimeError(f"ClearML refuses points: {wrong}")

    def file(self, path: Path, folder: str) -> None:
        from clearml import StorageManager
        from clearml.backend_api import Session

        root = os.environ.get("CLEARML_DEFAULT_OUTPUT_URI") or Session.get_files_server_host()
        place = f"{root.rstrip('/')}/{self.project}/{self._task}/{path.name}"
        uri = StorageManager.upload_file(str(path), place, retries=1)
        if folder == "checkpoints":
            of = {"name": path.stem, "framework": "PyTorch", "ready": False, "task": self._task, "uri": uri}
            there = self.ask("models.get_all", task=[self._task], uri=[uri])["models"]
            model = (there or [self.ask("models.create", **of)])[0]["id"]
            self._do("add_or_update_model", name=path.stem, model=model, type="output")
        else:
            self._do("add_or_update_artifacts", artifacts=[_artifact(path, uri)], force=True)

    def state(self, state: str, t: float) -> None:
        self._do(_STATES.get(state, "failed"), force=True, status_reason=state)

    def _found(self, project: str, about: About) -> str:
        """The id of the task: that of a queue's agent that runs this, else by the key; else it is made."""
        tag = f"mmfw:{about.key}"
        if about.lock is None and (given := self.given_id):
            tags = {*self.ask("tasks.get_by_id", task=given)["task"].get("tags", []), tag}
            self.ask("tasks.edit", task=given, tags=sorted(tags), force=True)
            return given
        if known := self.ask("tasks.get_all", tags=[tag], order_by=["created"], only_fields=["id"])["tasks"]:
            return str(known[0]["id"])
        what: dict[str, Any] = {"name": about.name, "tags": [tag], "type": "training", "project": project}
        if about.parent is not None:
            with file_lock(Path(str(about.parent.lock)), timeout=60.0):
                what["parent"] = self._found(project, about.parent)
        made = str(self.ask("tasks.create", **what)["id"])
        if about.lock:  # a sweep has no state of its own
            self.ask("tasks.completed", task=made, force=True)
        return made

    def _do(self, action: str, **what: Any) -> None:
        self.ask(f"tasks.{action}", task=self._task, **what)

    def ask(self, action: str, **what: Any) -> Any:
        """What the API answers. Raises RuntimeError where it refuses."""
        if self._session is None:
            from clearml.backend_api import Session
            from clearml.config import config_obj

            config_obj.set_overrides(_CONFIG)  # else it tries for hours, though a later command does, too
            self._session = Session(host=self.server)
        service, _, name = action.partition(".")
        return _said(self._session.send_request(service, name, _VERSION, json=what))


class _Offline(Connection):
    """One folder a run."""

    upload = "offline"
    note = "ClearML is offline; `Task.import_offline_session(FOLDER)` of clearml sends each folder later"

    def __init__(self) -> None:
        super().__init__()
        self.server, self._folder = OFFLINE, Path()

    def require_settings(self) -> bool:
        require_no_id([self])  # each folder becomes a task of its own
        return False

    def open(self, about: About) -> tuple[str, str]:
        cache = expand_home(os.environ.get("CLEARML_CACHE_DIR") or "~/.clearml/cache").absolute()
        self._folder = cache / "offline" / f"offline-{about.key}"
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        file = self._folder / "task.json"  # where it was removed, all is written anew, as of another task
        self._task = read_json(file)["id"] if file.exists() else f"offline-{uuid4().hex}"
        self._keep(id=self._task, offline_folder=str(self._folder), project_name=self.project)
        self._keep(name=about.name, tags=[f"mmfw:{about.key}"], type="training")
        return self._task, str(self._folder)

    def describe(self, settings: Mapping[str, str], tags: Mapping[str, str]) -> None:
        self._keep(hyperparams=_sections(settings, tags))

    def points(self, points: Sequence[Point]) -> None:
        with (self._folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([_event(self._task, point) for point in points]) + "\n")

    def file(self, path: Path, folder: str) -> None:
        link_or_copy(path, self._folder / "data" / path.name)
        files = sorted((self._folder / "data").iterdir())
        self._keep(execution={"artifacts": [_artifact(file, str(file)) for file in files]})

    def state(self, state: str, t: float) -> None:
        pass  # an imported one is completed

    def _keep(self, **told: Any) -> None:
        file = self._folder / "task.json"
        write_json(file, {**(read_json(file) if file.exists() else {}), **told})


def _sections(settings: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    def section(name: str, values: Mapping[str, str]) -> dict[str, Any]:
        return {key: {"section": name, "name": key, "value": value} for key, value in values.items()}

    return {"mmfw": section("mmfw", settings), _TAGS: section(_TAGS, tags)}


def _event(task: str, point: Point) -> dict[str, Any]:
    """A point of ``train/loss/2`` lies in the plot ``loss``, there in the series ``train/2``."""
    place, what, branch = re.split(r"^([^/]+)/(.+?)(/\d+)?$", point.name)[1:4]
    event = {"type": "training_stats_scalar", "task": task, "metric": what, "variant": place + (branch or "")}
    return event | {"value": point.value, "iter": point.step, "timestamp": round(point.t * 1000)}


def _artifact(path: Path, uri: str) -> dict[str, Any]:
    return {"key": path.name, "type": "custom", "uri": uri, "content_size": path.stat().st_size}


def _said(answer: Any) -> Any:
    """The data of an answer. Raises RuntimeError where the server refuses."""
    said = answer.json() if "json" in answer.headers.get("Content-Type", "") else {}
    if not answer.ok or "data" not in said:
        why = said.get("meta", {}).get("result_msg") or f"{answer.status_code} {answer.reason}"
        raise RuntimeError(f"{answer.url} refuses: {why}")
    return said["data"]


def _configured(what: re.Pattern[str]) -> str | None:
    """Return what a pattern finds in clearml's own file; importing clearml would take a second."""
    with suppress(OSError, UnicodeDecodeError):
        file = expand_home(os.environ.get("CLEARML_CONFIG_FILE") or "~/clearml.conf")
        found = what.search(file.read_text(encoding="utf-8"))
        return found and found[1]
    return None
