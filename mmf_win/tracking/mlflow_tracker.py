"""Tracker for an MLflow server (https://mlflow.org); needs only mlflow-skinny.

The server stores a point with the same name, step, time and value once, so sending it again has no effect.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mmf_win.errors import MmfEnvironmentError, UsageError
from mmf_win.locking import file_lock
from mmf_win.paths import expand_home
from mmf_win.tracking.tracker import DEFAULT_PROJECT, MetricPoint, RunInfo, Tracker, describe_error

_KEY_TAG = "mmfw.key"
_MAX_BATCH_SIZES = {"metrics": 1000, "params": 100, "tags": 100}  # per request
_MAX_VALUE_CHARS = 5000
_FILE_STORE_VARIABLE = "MLFLOW_ALLOW_FILE_STORE"
_PROBE_PATH = "/api/2.0/mlflow/experiments/get-by-name?experiment_name=Default"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_STATES = {"running": "RUNNING", "done": "FINISHED", "interrupted": "KILLED", "killed": "KILLED"}


class MLflowTracker(Tracker):
    """Connection to MLflow."""

    name = "mlflow"
    address_variable = "MLFLOW_TRACKING_URI"
    id_variable = "MLFLOW_RUN_ID"
    probe = (_PROBE_PATH, None, {"experiment", "error_code"})

    def __init__(self) -> None:
        self.server = os.environ.get(self.address_variable, "")
        self.project = os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_PROJECT
        if local := re.fullmatch(r"(file:|sqlite(?:\+\w+)?:///)(?![/\\]|\w:|:memory:)(.+)", self.server):
            self.server = local[1] + Path(local[2]).absolute().as_posix()  # distinct for each folder
        scheme = re.match(r"databricks$|\w[\w.-]+(?=[+:])", self.server)
        self._scheme = scheme[0] if scheme else "file"
        if self._scheme in ("file", "sqlite"):
            self.upload = "local"
            self.note = f"runs go to {self.server}, a store on this machine, not to a server"
        if not self.server:
            hint = f"run `mlflow server`, and set {self.address_variable}=http://127.0.0.1:5000"
            raise UsageError(f"{self.address_variable} is not set", hint=hint)
        # MLflow would retry for minutes; the uploader retries anyway.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # may contain a password
        self._client: Any = None
        self._run_id = ""

    def require_settings(self) -> bool:
        scheme, path = self._scheme, self.server.partition(":///")[2]
        if scheme == "sqlite" and (path in ("", ":memory:") or Path(path).is_dir()):
            raise UsageError(f"{self.server} is not a file", hint=f"use {self.address_variable}=sqlite:///FILE")
        if scheme == "file" and os.environ.get(_FILE_STORE_VARIABLE, "").lower() not in ("true", "1"):
            message = f"{self.server} is not a server of mlflow; MLflow writes to a folder only with"
            hint = f"set {self.address_variable} to a server or to sqlite:///FILE"
            raise UsageError(f"{message} {_FILE_STORE_VARIABLE}=true", hint=hint)
        if scheme in _DATABASES:
            self._require_driver()
        file = expand_home(os.environ.get("DATABRICKS_CONFIG_FILE") or "~/.databrickscfg")
        variables = map(os.environ.get, ("DATABRICKS_HOST", "DATABRICKS_RUNTIME_VERSION"))
        if scheme == "databricks" and not (any(variables) or file.is_file()):
            hint = "set DATABRICKS_HOST and DATABRICKS_TOKEN, or run `databricks configure`"
            raise UsageError("no Databricks credentials", hint=hint)
        plugins = {plugin.name for plugin in entry_points(group="mlflow.tracking_store")}
        return scheme not in {"file", "databricks", *_DATABASES, *(plugins - {"http", "https"})}

    def _require_driver(self) -> None:
        """Import the packages for a database; nothing is opened yet."""
        try:
            import_module("alembic")
            import_module("sqlalchemy").create_engine(self.server)
        except ImportError as error:
            hint = "run `pip install sqlalchemy alembic`, and install the driver of the database"
            raise MmfEnvironmentError(f"{self.address} needs the package {error.name}", hint=hint) from None
        except Exception as error:  # from SQLAlchemy: invalid address, or unknown database
            hint = f"correct {self.address_variable}"
            raise UsageError(f"{self.address}: {describe_error(error)}", hint=hint) from None

    def open_run(self, run_info: RunInfo) -> tuple[str, str]:
        from mlflow import MlflowClient

        self._client = self._client or MlflowClient()
        run = self._find_recorded_run(run_info) or self._get_or_create_run(self._get_or_create_experiment(), run_info)
        self._run_id, experiment = run.info.run_id, run.info.experiment_id
        return self._run_id, f"{self.host}/#/experiments/{experiment}/runs/{self._run_id}"

    def log_params(self, settings: Mapping[str, str], tags: Mapping[str, str]) -> None:
        from mlflow.entities import Param, RunTag

        stored = self._client.get_run(self._run_id).data
        params = {_legal_name(key): value[:_MAX_VALUE_CHARS] for key, value in settings.items()}
        # Parameters cannot change in MLflow, so tags hold the new values.
        latest = {**params, **stored.params, **stored.tags}
        changed = {key: value for key, value in params.items() if latest[key] != value}
        self._log_batches("params", [Param(key, value) for key, value in params.items() if key not in stored.params])
        self._log_batches("tags", [RunTag(_legal_name(key), value) for key, value in {**changed, **tags}.items()])

    def log_metrics(self, points: Sequence[MetricPoint]) -> None:
        from mlflow.entities import Metric

        self._log_batches("metrics", [Metric(_legal_name(p.name), p.value, round(p.t * 1000), p.step) for p in points])

    def log_artifact(self, path: Path, folder: str) -> None:
        self._client.log_artifact(self._run_id, str(path), folder)

    def set_status(self, state: str, t: float) -> None:
        status = _STATES.get(state, "FAILED")
        if status == "RUNNING":
            self._client.update_run(self._run_id, status)
        else:
            self._client.set_terminated(self._run_id, status, round(t * 1000))

    def _get_or_create_experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        if (experiment := self._client.get_experiment_by_name(self.project)) is None:
            try:
                return str(self._client.create_experiment(self.project))
            except MlflowException:
                if (experiment := self._client.get_experiment_by_name(self.project)) is None:
                    raise  # otherwise another follower was faster
        return str(experiment.experiment_id)

    def _find_recorded_run(self, run_info: RunInfo) -> Any:
        """Return the run of the environment variable or the upload state, or ``None`` if it was deleted."""
        from mlflow.exceptions import MlflowException

        with nullcontext() if self.env_run_id else suppress(MlflowException):
            if run_info.id:
                run = self._client.get_run(run_info.id)
                if run.data.tags.get(_KEY_TAG, run_info.key) != run_info.key:
                    message = f"{self.id_variable} names a run of another training"
                    raise UsageError(message, hint=f"unset {self.id_variable}")
                self._client.set_tag(run_info.id, _KEY_TAG, run_info.key)  # fails for a deleted run
                return run
        return None

    def _get_or_create_run(self, experiment: str, run_info: RunInfo) -> Any:
        """Return the run with this key, or create it; the run of a sweep is ended at once."""
        client, tags = self._client, {_KEY_TAG: run_info.key}
        for run in client.search_runs([experiment], f"tags.`{_KEY_TAG}` = '{run_info.key}'", max_results=1):
            return run
        if run_info.parent is not None:
            with file_lock(Path(str(run_info.parent.lock)), timeout=60.0):
                tags["mlflow.parentRunId"] = self._get_or_create_run(experiment, run_info.parent).info.run_id
        created = client.create_run(experiment, round(run_info.created * 1000), tags, run_info.name)
        if run_info.lock:
            client.set_terminated(created.info.run_id)
        return created

    def _log_batches(self, kind: str, entities: Sequence[Any]) -> None:
        for first in range(0, len(entities), _MAX_BATCH_SIZES[kind]):
            self._client.log_batch(self._run_id, **{kind: entities[first : first + _MAX_BATCH_SIZES[kind]]})


def _legal_name(name: str) -> str:
    """Replace the characters that MLflow rejects in names."""
    return re.sub(r"[^\w\-. :/]|(?<![^/])\.{0,2}(?![^/])", "_", name)[:250]
