"""Tracker for a ClearML server (https://clear.ml).

It calls the server's API through clearml's ``Session``. clearml's ``Task`` is not used: it hooks into click,
whose arguments may contain a password, sends the uncommitted changes that git finds, and only logs what the
server rejects. For the same reason, offline mode writes the folder that ``Task.import_offline_session`` reads
without clearml.

The server stores one point per series and update, so sending a point again has no effect.
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
from mmf_win.tracking.tracker import DEFAULT_PROJECT, OFFLINE, MetricPoint, RunInfo, Tracker, require_no_env_run_id

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
    """Connection to ClearML."""

    name = "clearml"
    address_variable = "CLEARML_API_HOST"
    id_variable = "CLEARML_TASK_ID"
    probe = ("/debug.ping", None, {"meta"})

    def __new__(cls) -> ClearMLTracker:
        mode = os.environ.get("CLEARML_OFFLINE_MODE", "").lower()
        is_offline = mode not in ("", "0", "f", "false", "n", "no", "off")
        return super().__new__(_OfflineClearMLTracker if is_offline else cls)

    def __init__(self) -> None:
        self.server = os.environ.get(self.address_variable) or _search_config(_API_SERVER_PATTERN) or _DEFAULT_SERVER
        self.project = os.environ.get("CLEARML_PROJECT") or DEFAULT_PROJECT
        self._session: Any = None
        self._task_id = ""

    def require_settings(self) -> bool:
        credentials = map(os.environ.get, ("CLEARML_API_ACCESS_KEY", "CLEARML_AUTH_TOKEN"))
        if not (any(credentials) or _search_config(_ACCESS_KEY_PATTERN)):
            hint = "run `clearml-init`, or set CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY"
            raise UsageError(f"no ClearML API key for {self.host}", hint=hint)
        return True

    def open_run(self, run_info: RunInfo) -> tuple[str, str]:
        from clearml.backend_api import Session

        projects = self.call_api("projects.get_all", name=f"^{re.escape(self.project)}$")["projects"]
        project = (projects or [self.call_api("projects.create", name=self.project, description="")])[0]["id"]
        self._task_id = self._get_or_create_task(project, run_info)
        self.set_status("running", run_info.created)  # an ended task rejects most calls
        host = self.host
        with suppress(ValueError):  # the address of the web interface is unknown
            host = Session.get_app_server_host()
        return self._task_id, f"{host.rstrip('/')}/projects/*/experiments/{self._task_id}"

    def log_params(self, settings: Mapping[str, str], tags: Mapping[str, str]) -> None:
        for section, params in _param_sections(settings, tags).items():
            # The section of tags may contain tags of the user.
            replace = "none" if section == _TAGS_SECTION else "section"
            self._call_task_api(
                "edit_hyper_params", hyperparams=[*params.values()], replace_hyperparams=replace, force=True
            )

    def log_metrics(self, points: Sequence[MetricPoint]) -> None:
        events = [_scalar_event(self._task_id, point) for point in points]
        for answer in self._session.send_request_batch("events", "add_batch", _API_VERSION, json=events):
            if errors := _answer_data(answer).get("errors_info"):
                raise RuntimeError(f"ClearML rejected metric values: {errors}")

    def log_artifact(self, path: Path, folder: str) -> None:
        from clearml import StorageManager
        from clearml.backend_api import Session

        root = os.environ.get("CLEARML_DEFAULT_OUTPUT_URI") or Session.get_files_server_host()
        url = f"{root.rstrip('/')}/{self.project}/{self._task_id}/{path.name}"
        uri = StorageManager.upload_file(str(path), url, retries=1)
        if folder == "checkpoints":
            fields = {"name": path.stem, "framework": "PyTorch", "ready": False, "task": self._task_id, "uri": uri}
            models = self.call_api("models.get_all", task=[self._task_id], uri=[uri])["models"]
            model = (models or [self.call_api("models.create", **fields)])[0]["id"]
            self._call_task_api("add_or_update_model", name=path.stem, model=model, type="output")
        else:
            self._call_task_api("add_or_update_artifacts", artifacts=[_artifact_record(path, uri)], force=True)

    def set_status(self, state: str, t: float) -> None:  # the server sets the time
        self._call_task_api(_STATES.get(state, "failed"), force=True, status_reason=state)

    def _get_or_create_task(self, project: str, run_info: RunInfo) -> str:
        """Return the ID of the task of a ClearML agent, or else of the task with the run's key."""
        tag = f"mmfw:{run_info.key}"
        if run_info.lock is None and (task_id := self.env_run_id):
            tags = {*self.call_api("tasks.get_by_id", task=task_id)["task"].get("tags", []), tag}
            self.call_api("tasks.edit", task=task_id, tags=sorted(tags), force=True)
            return task_id
        if tasks := self.call_api("tasks.get_all", tags=[tag], order_by=["created"], only_fields=["id"])["tasks"]:
            return str(tasks[0]["id"])
        task: dict[str, Any] = {"name": run_info.name, "tags": [tag], "type": "training", "project": project}
        if run_info.parent is not None:
            with file_lock(Path(str(run_info.parent.lock)), timeout=60.0):
                task["parent"] = self._get_or_create_task(project, run_info.parent)
        created = str(self.call_api("tasks.create", **task)["id"])
        if run_info.lock:  # a sweep has no status
            self.call_api("tasks.completed", task=created, force=True)
        return created

    def _call_task_api(self, action: str, **params: Any) -> None:
        self.call_api(f"tasks.{action}", task=self._task_id, **params)

    def call_api(self, action: str, **params: Any) -> Any:
        """Call the API and return the data of the response."""
        if self._session is None:
            from clearml.backend_api import Session
            from clearml.config import config_obj

            config_obj.set_overrides(_CONFIG)  # otherwise it retries for hours
            self._session = Session(host=self.server)
        service, _, name = action.partition(".")
        return _answer_data(self._session.send_request(service, name, _API_VERSION, json=params))


class _OfflineClearMLTracker(ClearMLTracker):
    """Tracker that writes one folder per run."""

    upload = "offline"
    note = "ClearML is offline; call clearml's `Task.import_offline_session(FOLDER)` to upload a folder later"

    def __init__(self) -> None:
        super().__init__()
        self.server, self._folder = OFFLINE, Path()

    def require_settings(self) -> bool:
        require_no_env_run_id([self])  # each folder becomes a new task
        return False

    def open_run(self, run_info: RunInfo) -> tuple[str, str]:
        cache = expand_home(os.environ.get("CLEARML_CACHE_DIR") or "~/.clearml/cache").absolute()
        self._folder = cache / "offline" / f"offline-{run_info.key}"
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        file = self._folder / "task.json"  # if it was removed, a new task is written
        self._task = read_json(file)["id"] if file.exists() else f"offline-{uuid4().hex}"
        self._update_task_file(id=self._task, offline_folder=str(self._folder), project_name=self.project)
        self._update_task_file(name=run_info.name, tags=[f"mmfw:{run_info.key}"], type="training")
        return self._task, str(self._folder)

    def log_params(self, settings: Mapping[str, str], tags: Mapping[str, str]) -> None:
        self._update_task_file(hyperparams=_param_sections(settings, tags))

    def log_metrics(self, points: Sequence[MetricPoint]) -> None:
        with (self._folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([_scalar_event(self._task, point) for point in points]) + "\n")

    def log_artifact(self, path: Path, folder: str) -> None:  # all files are in one folder
        link_or_copy(path, self._folder / "data" / path.name)
        files = sorted((self._folder / "data").iterdir())
        self._update_task_file(execution={"artifacts": [_artifact_record(file, str(file)) for file in files]})

    def set_status(self, state: str, t: float) -> None:
        pass  # imported tasks are completed

    def _update_task_file(self, **values: Any) -> None:
        file = self._folder / "task.json"
        write_json(file, {**(read_json(file) if file.exists() else {}), **values})


def _param_sections(settings: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    def section(name: str, values: Mapping[str, str]) -> dict[str, Any]:
        return {key: {"section": name, "name": key, "value": value} for key, value in values.items()}

    return {"mmfw": section("mmfw", settings), _TAGS_SECTION: section(_TAGS_SECTION, tags)}


def _scalar_event(task: str, point: MetricPoint) -> dict[str, Any]:
    """Return the event of a point; ``train/loss/2`` is in the series ``train/2`` of the plot ``loss``."""
    prefix, metric, branch = re.split(r"^([^/]+)/(.+?)(/\d+)?$", point.name)[1:4]
    variant = prefix + (branch or "")
    event = {"type": "training_stats_scalar", "task": task, "metric": metric, "variant": variant}
    return event | {"value": point.value, "iter": point.step, "timestamp": round(point.t * 1000)}


def _artifact_record(path: Path, uri: str) -> dict[str, Any]:
    return {"key": path.name, "type": "custom", "uri": uri, "content_size": path.stat().st_size}


def _answer_data(answer: Any) -> Any:
    """Return the data of a response.

    Raises:
        RuntimeError: The server rejected the request.
    """
    content = answer.json() if "json" in answer.headers.get("Content-Type", "") else {}
    if not answer.ok or "data" not in content:
        reason = content.get("meta", {}).get("result_msg") or f"{answer.status_code} {answer.reason}"
        raise RuntimeError(f"{answer.url}: request rejected: {reason}")
    return content["data"]


def _search_config(pattern: re.Pattern[str]) -> str | None:
    """Return what a pattern finds in clearml's configuration file; importing clearml would take a second."""
    with suppress(OSError, UnicodeDecodeError):
        file = expand_home(os.environ.get("CLEARML_CONFIG_FILE") or "~/clearml.conf")
        match = pattern.search(file.read_text(encoding="utf-8"))
        return match and match[1]
    return None
