"""Outcome of a task when Ray loses every node that runs it, with a fake cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from mmf_win.errors import TrainingError
from mmf_win.sweeps.folder import SweepFolder, Task
from mmf_win.sweeps.ray_backend import RayCluster
from mmf_win.sweeps.task_runner import Slot, TaskRunner, TaskSignals


class RayError(Exception):
    """Substitute for Ray's error for a lost node."""


class FakeRay:
    """Substitute for the module of Ray."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=type("RayTaskError", (Exception,), {}))

    def remote(self, **_: Any) -> Any:
        """Return a decorator that changes nothing."""
        return lambda actor: actor


def test_task_fails_when_a_fake_cluster_loses_each_of_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object) -> NoReturn:
        raise RayError("the node died")

    monkeypatch.setattr(RayCluster, "_run_on_node", lose)
    sweep = SweepFolder(tmp_path)
    sweep.task_folder("A_1").path.mkdir()
    runner = TaskRunner(sweep, {}, shell=False, resume=lambda arguments, _run: list(arguments), timestamp="now")
    with pytest.raises(TrainingError, match="the node died") as caught:
        RayCluster(FakeRay(), "").run(runner, Task("A_1", {}, ()), Slot(0, "", {}), lambda _: None, TaskSignals)
    assert caught.value.exit_code == 7
