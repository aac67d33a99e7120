"""Sends to Weights & Biases, which https://wandb.ai describes, or with WANDB_MODE=offline to a folder.

Offline, each start makes another folder below the run's ``tracking/wandb``; ``wandb sync`` sends them later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from glob import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from mmf_win.tracking.tracker import OFFLINE, PROJECT, About, Point, Tracker

_TO_BEGIN, _TO_END = 60.0, 1800.0  # seconds


class Connection(Tracker):
    """A connection to W&B."""

    _run: Any
    name = "wandb"
    variable = "WANDB_BASE_URL"
    confirms = False  # what its own process has not written yet is lost where that is killed
    probe = ("/graphql", b'{"query": "{ __typename }"}', {"data", "errors"})

    def __init__(self) -> None:
        server = os.environ.get(self.variable) or "https://api.wandb.ai"
        self.server = OFFLINE if os.environ.get("WANDB_MODE") == "offline" else server
        self.project = os.environ.get("WANDB_PROJECT") or PROJECT
        os.environ.setdefault("WANDB_SILENT", "true")  # else it prints, whatever its settings
        self._run, self._exit_code = None, 0

    def open(self, about: About) -> tuple[str, str]:
        import wandb

        self.close()
        # By itself it sends much of the machine, its user, the code and the command line.
        off = ("disable_code", "disable_git", "x_disable_meta", "x_disable_stats", "x_disable_machine_info")
        how: dict[str, Any] = {**dict.fromkeys(off, True), "host": "", "console": "off", "symlink": False}
        how |= {"init_timeout": _TO_BEGIN, "finish_timeout": _TO_END, "finish_timeout_raises": True}
        settings = wandb.Settings(x_save_requirements=False, **how)
        named: dict[str, Any] = {"id": about.key, "project": self.project, "name": about.name}
        group = about.parent.name if about.parent else None
        self._run = wandb.init(**named, group=group, resume="allow", dir=about.folder, settings=settings)
        # Its own steps never go back, as updates do after a resume.
        self._run.define_metric("update", hidden=True)
        self._run.define_metric("*", step_metric="update")
        return about.key, str(about.folder) if self.server == OFFLINE else self._run.url

    def describe(self, settings: Mapping[str, str], tags: Mapping[str, str]) -> None:
        self._run.config.update(dict(settings), allow_val_change=True)
        self._run.summary.update(dict(tags))

    def points(self, points: Sequence[Point]) -> None:
        for (step, t), some in groupby(points, lambda point: (point.step, point.t)):
            self._run.log({"update": step, "_timestamp": t} | {point.name: point.value for point in some})

    def file(self, path: Path, folder: str) -> None:
        base = escape(str(path.parent))
        self._run.save(escape(str(path)), base_path=base, policy="now")  # links or copies it at once

    def state(self, state: str, t: float) -> None:
        self._exit_code = 0 if state in ("running", "done") else 1

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(self._exit_code)
