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
from mmf_win.tracking.tracker import (
    DEFAULT_PROJECT,
    OFFLINE,
    MetricPoint,
    RunInfo,
    Tracker,
    require_no_env_run_id,
)

_DEFAULT_SERVER, _API_VERSION, _TAGS_SECTION = "https://api.clear.ml", "2.13", "properties"
_API_SERVER_PATTERN = re.compile(r'^[^#\n]*\bapi_server\s*[:=]\s*"?(http[^"\s,}]+)', re.MULTILINE)
_ACCESS_KEY_PATTERN = re.compile(r'^[^#\n]*\baccess_key"?\s*[:=]\s*"?([^"\s,}]+)', re.MULTILINE)
_STATES = {"running": "started", "done": "completed", "interrupted": "stopped", "killed": "stopped"}
_RETRY_LIMITS = dict.fromkeys(("total", "connect", "read", "redirect", "status"), 1)
_CONFIG = {
    "api": {"http": {"retries": _RETRY_LIMITS, "wait_on_maintenance_forever": False}},
    "sdk": {"http": {"download": {"max_retries": 1}}, "development": {"report_use_subprocess": False}},
}


class ClearMLTracker(Tracker):
    """A connection to ClearML."""

    name = "clearml"
    address_variable = "CLEARML_API_HOST"
    id_variable = "CLEARML_TASK_ID"
    probe = ("/debug.ping", None, {"meta"})

    def __new__(cls) -> ClearMLTracker:
        told = os.environ.get("CLEARML_OFFLINE_MODE", "").lower()
        off = told not in ("", "0", "f", "false", "n", "no", "off")
        return super().__new__(_OfflineClearMLTracker if off else cls)

    def __init__(self) -> None:
        self.server = (
            os.environ.get(self.address_variable)
            or _search_config_file(_API_SERVER_PATTERN)
            or _DEFAULT_SERVER
        )
        self.project = os.environ.get("CLEARML_PROJECT") or DEFAULT_PROJECT
        self._session: Any = None
        self._task_id = ""

    def require_settings(self) -> bool:
        given = map(os.environ.get, ("CLEARML_API_ACCESS_KEY", "CLEARML_AUTH_TOKEN"))
        if not (any(given) or _search_config_file(_ACCESS_KEY_PATTERN)):
            hint = "run `clearml-init`, or set CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY"
            raise UsageError(f"there is no ClearML API key for {self.host}", hint=hint)
        return True

    def open_run(self, run_info: RunInfo) -> tuple[str, str]:
        from clearml.backend_api import Session

        named = self.call_api("projects.get_all", name=f"^{re.escape(self.project)}$")["projects"]
        project = (named or [self.call_api("projects.create", name=self.project, description="")])[0]["id"]
        self._task_id = self._get_or_create_task(project, run_info)
        self.set_status("running", run_info.created)  # for an ended one refuses most
        web = self.host
        with suppress(ValueError):  # nothing says where people look
            web = Session.get_app_server_host()
        return self._task_id, f"{web.rstrip('/')}/projects/*/experiments/{self._task_id}"

    def log_params(self, settings: Mapping[str, str], tags: Mapping[str, str]) -> None:
        for section, params in _param_sections(settings, tags).items():
            how = "none" if section == _TAGS_SECTION else "section"  # the former are the user's, too
            self._call_task_api(
                "edit_hyper_params", hyperparams=[*params.values()], replace_hyperparams=how, force=True
            )

    def log_metrics(self, points: Sequence[MetricPoint]) -> None:
        events = [_scalar_event(self._task_id, point) for point in points]
        for answer in self._session.send_request_batch("events", "add_batch", _API_VERSION, json=events):
            if wrong := _answer_data(answer).get("errors_info"):
                raise RuntimeError(f"ClearML refuses points: {wrong}")

    def log_artifact(self, path: Path, folder: str) -> None:
        from clearml import StorageManager
        from clearml.backend_api import Session

        root = os.environ.get("CLEARML_DEFAULT_OUTPUT_URI") or Session.get_files_server_host()
        place = f"{root.rstrip('/')}/{self.project}/{self._task_id}/{path.name}"
        uri = StorageManager.upload_file(str(path), place, retries=1)
        if folder == "checkpoints":
            of = {
                "name": path.stem,
                "framework": "PyTorch",
                "ready": False,
                "task": self._task_id,
                "uri": uri,
            }
            there = self.call_api("models.get_all", task=[self._task_id], uri=[uri])["models"]
            model = (there or [self.call_api("models.create", **of)])[0]["id"]
            self._call_task_api("add_or_update_model", name=path.stem, model=model, type="output")
        else:
            self._call_task_api(
                "add_or_update_artifacts", artifacts=[_artifact_record(path, uri)], force=True
            )

    def set_status(self, state: str, t: float) -> None:
        self._call_task_api(_STATES.get(state, "failed"), force=True, status_reason=state)

    def _get_or_create_task(self, project: str, run_info: RunInfo) -> str:
        """The id of the task: that of a queue's agent that runs this, else by the key; else it is made."""
        tag = f"mmfw:{run_info.key}"
        if run_info.lock is None and (given := self.env_run_id):
            tags = {*self.call_api("tasks.get_by_id", task=given)["task"].get("tags", []), tag}
            self.call_api("tasks.edit", task=given, tags=sorted(tags), force=True)
            return given
        if known := self.call_api("tasks.get_all", tags=[tag], order_by=["created"], only_fields=["id"])[
            "tasks"
        ]:
            return str(known[0]["id"])
        what: dict[str, Any] = {"name": run_info.name, "tags": [tag], "type": "training", "project": project}
        if run_info.parent is not None:
            with file_lock(Path(str(run_info.parent.lock)), timeout=60.0):
                what["parent"] = self._get_or_create_task(project, run_info.parent)
        made = str(self.call_api("tasks.create", **what)["id"])
        if run_info.lock:  # a sweep has no state of its own
            self.call_api("tasks.completed", task=made, force=True)
        return made

    def _call_task_api(self, action: str, **params: Any) -> None:
        self.call_api(f"tasks.{action}", task=self._task_id, **params)

    def call_api(self, action: str, **params: Any) -> Any:
        """What the API answers. Raises RuntimeError where it refuses."""
        if self._session is None:
            from clearml.backend_api import Session
            from clearml.config import config_obj

            config_obj.set_overrides(_CONFIG)  # else it tries for hours, though a later command does, too
            self._session = Session(host=self.server)
        service, _, name = action.partition(".")
        return _answer_data(self._session.send_request(service, name, _API_VERSION, json=params))


class _OfflineClearMLTracker(ClearMLTracker):
    """One folder a run."""

    upload = "offline"
    note = "ClearML is offline; `Task.import_offline_session(FOLDER)` of clearml sends each folder later"

    def __init__(self) -> None:
        super().__init__()
        self.server, self._folder = OFFLINE, Path()

    def require_settings(self) -> bool:
        require_no_env_run_id([self])  # each folder becomes a task of its own
        return False

    def open_run(self, run_info: RunInfo) -> tuple[str, str]:
        cache = expand_home(os.environ.get("CLEARML_CACHE_DIR") or "~/.clearml/cache").absolute()
        self._folder = cache / "offline" / f"offline-{run_info.key}"
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        file = self._folder / "task.json"  # where it was removed, all is written anew, as of another task
        self._task = read_json(file)["id"] if file.exists() else f"offline-{uuid4().hex}"
        self._update_task_file(id=self._task, offline_folder=str(self._folder), project_name=self.project)
        self._update_task_file(name=run_info.name, tags=[f"mmfw:{run_info.key}"], type="training")
        return self._task, str(self._folder)

    def log_params(self, settings: Mapping[str, str], tags: Mapping[str, str]) -> None:
        self._update_task_file(hyperparams=_param_sections(settings, tags))

    def log_metrics(self, points: Sequence[MetricPoint]) -> None:
        with (self._folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([_scalar_event(self._task, point) for point in points]) + "\n")

    def log_artifact(self, path: Path, folder: str) -> None:
        link_or_copy(path, self._folder / "data" / path.name)
        files = sorted((self._folder / "data").iterdir())
        self._update_task_file(execution={"artifacts": [_artifact_record(file, str(file)) for file in files]})

    def set_status(self, state: str, t: float) -> None:
        pass  # an imported one is completed

    def _update_task_file(self, **values: Any) -> None:
        file = self._folder / "task.json"
        write_json(file, {**(read_json(file) if file.exists() else {}), **values})


def _param_sections(settings: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    def section(name: str, values: Mapping[str, str]) -> dict[str, Any]:
        return {key: {"section": name, "name": key, "value": value} for key, value in values.items()}

    return {"mmfw": section("mmfw", settings), _TAGS_SECTION: section(_TAGS_SECTION, tags)}


def _scalar_event(task: str, point: MetricPoint) -> dict[str, Any]:
    """A point of ``train/loss/2`` lies in the plot ``loss``, there in the series ``train/2``."""
    place, what, branch = re.split(r"^([^/]+)/(.+?)(/\d+)?$", point.name)[1:4]
    event = {"type": "training_stats_scalar", "task": task, "metric": what, "variant": place + (branch or "")}
    return event | {"value": point.value, "iter": point.step, "timestamp": round(point.t * 1000)}


def _artifact_record(path: Path, uri: str) -> dict[str, Any]:
    return {"key": path.name, "type": "custom", "uri": uri, "content_size": path.stat().st_size}


def _answer_data(answer: Any) -> Any:
    """The data of an answer. Raises RuntimeError where the server refuses."""
    said = answer.json() if "json" in answer.headers.get("Content-Type", "") else {}
    if not answer.ok or "data" not in said:
        why = said.get("meta", {}).get("result_msg") or f"{answer.status_code} {answer.reason}"
        raise RuntimeError(f"{answer.url} refuses: {why}")
    return said["data"]


def _search_config_file(pattern: re.Pattern[str]) -> str | None:
    """Return what a pattern finds in clearml's own file; importing clearml would take a second."""
    with suppress(OSError, UnicodeDecodeError):
        file = expand_home(os.environ.get("CLEARML_CONFIG_FILE") or "~/clearml.conf")
        found = pattern.search(file.read_text(encoding="utf-8"))
        return found and found[1]
    return None
