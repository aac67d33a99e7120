"""Tracker for Weights & Biases (https://wandb.ai), or for a folder with WANDB_MODE=offline.

Offline, each process creates a new folder in the run's ``tracking/wandb``; ``wandb sync`` sends them later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from configparser import ConfigParser, Error
from contextlib import suppress
from glob import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from mmf_win.errors import UsageError
from mmf_win.paths import expand_home
from mmf_win.tracking.tracker import DEFAULT_PROJECT, OFFLINE, MetricPoint, RunInfo, Tracker, UploadTarget

_START_TIMEOUT_S, _FINISH_TIMEOUT_S = 60.0, 1800.0
_MODES: dict[str, UploadTarget] = {"online": "server", "shared": "server", "run": "server", "offline": "offline"}
_MODES |= {"dryrun": "offline", "disabled": "disabled"}
_NOTES = {
    "disabled": "W&B is disabled, nothing is uploaded; set WANDB_MODE=online to upload runs",
    "offline": "W&B is offline; run `wandb sync RUN/tracking/wandb/offline-run-*` to upload runs later",
}


class WandbTracker(Tracker):
    """Connection to W&B."""

    _run: Any
    name = "wandb"
    address_variable = "WANDB_BASE_URL"
    id_variable = "WANDB_RUN_ID"
    confirms = False  # data that W&B's own process has not written is lost if it is killed
    probe = ("/graphql", b'{"query": "{ __typename }"}', {"data", "errors"})

    def __init__(self) -> None:
        server = os.environ.get(self.address_variable) or "https://api.wandb.ai"
        self._mode = os.environ.get("WANDB_MODE") or _read_setting("mode") or "online"
        self.upload = _MODES.get(self._mode, "server")
        self.server = OFFLINE if self.upload == "offline" else server
        self.note = _NOTES.get(self.upload, "")
        self.project = os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT
        os.environ.setdefault("WANDB_SILENT", "true")  # otherwise it prints despite its settings
        self._run, self._exit_code = None, 0

    def require_settings(self) -> bool:
        from requests.utils import get_netrc_auth  # here, as every training imports this module

        if self._mode not in _MODES:
            hint = "set WANDB_MODE to online, offline or disabled"
            raise UsageError(f"unknown W&B mode {self._mode}", hint=hint)
        variables = map(os.environ.get, ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"))
        if self.upload == "server" and not (any(variables) or _read_setting("api_key") or get_netrc_auth(self.server)):
            hint = "run `wandb login`, or set WANDB_API_KEY"
            raise UsageError(f"no W&B API key for {self.host}", hint=hint)
        return self.upload == "server"

    def open_run(self, run_info: RunInfo) -> tuple[str, str]:
        import wandb

        self.close()
        # By default it sends details of the machine, the user, the code and the command line.
        flags = ("disable_code", "disable_git", "x_disable_meta", "x_disable_stats", "x_disable_machine_info")
        options: dict[str, Any] = {"host": "", "console": "off", "symlink": False, "finish_timeout_raises": True}
        options |= dict.fromkeys(flags, True)
        options |= {"init_timeout": _START_TIMEOUT_S, "finish_timeout": _FINISH_TIMEOUT_S}
        settings = wandb.Settings(x_save_requirements=False, **options)
        for name in () if self.env_run_id else ("WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_LAUNCH"):
            os.environ.pop(name, None)  # with those of an agent, W&B ignores the ID
        names: dict[str, Any] = {"id": run_info.id or run_info.key, "project": self.project, "name": run_info.name}
        group = run_info.parent.name if run_info.parent else None
        self._run = wandb.init(**names, group=group, resume="allow", dir=run_info.folder, settings=settings)
        if self._run.disabled or self._run.offline != (self.upload == "offline"):
            raise UsageError("W&B is offline or disabled", hint="run `wandb online`, and unset WANDB_MODE")
        # W&B's own steps cannot decrease, but updates do after a resume.
        self._run.define_metric("update", hidden=True)
        self._run.define_metric("*", step_metric="update")
        return self._run.id, str(run_info.folder) if self.server == OFFLINE else self._run.url

    def log_params(self, settings: Mapping[str, str], tags: Mapping[str, str]) -> None:
        self._run.config.update(dict(settings), allow_val_change=True)
        self._run.summary.update(dict(tags))

    def log_metrics(self, points: Sequence[MetricPoint]) -> None:
        for (step, t), group in groupby(points, lambda point: (point.step, point.t)):
            self._run.log({"update": step, "_timestamp": t} | {point.name: point.value for point in group})

    def log_artifact(self, path: Path, folder: str) -> None:  # W&B keeps all files in one folder
        base = escape(str(path.parent))
        self._run.save(escape(str(path)), base_path=base, policy="now")  # links or copies it immediately

    def set_status(self, state: str, t: float) -> None:  # W&B sets the time
        self._exit_code = 0 if state in ("running", "done") else 1

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(self._exit_code)


def _read_setting(name: str) -> str | None:
    """Return a setting from W&B's settings files, which ``wandb offline`` and ``wandb login`` write."""
    config, root = ConfigParser(interpolation=None), expand_home(os.environ.get("WANDB_DIR") or ".")
    system = expand_home(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb")
    with suppress(Error, UnicodeDecodeError):
        config.read([system / "settings", root / "wandb" / "settings", root / ".wandb" / "settings"])
    return config.get("default", name, fallback=None)
