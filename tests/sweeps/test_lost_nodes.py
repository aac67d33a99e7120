"""What a task ends with when Ray loses every node that runs it; a fake stands for the cluster."""

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
    """Stands for Ray's error of a node that is lost."""


class FakeRay:
    """Stands for the module of Ray."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=type("RayTaskError", (Exception,), {}))

    def remote(self, **_: Any) -> Any:
        """Return a decorator that changes nothing."""
        return lambda actor: actor


def test_a_task_whose_every_node_a_fake_cluster_loses_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object) -> NoReturn:
        raise RayError("the node died")

    monkeypatch.setattr(RayCluster, "_run_on_node", lose)
    sweep = SweepFolder(tmp_path)
    sweep.task_folder("A_1").path.mkdir()
    runner = TaskRunner(sweep, {}, shell=False, resume=lambda words, _run: list(words), timestamp="now")
    with pytest.raises(TrainingError, match="the node died") as raised:
        RayCluster(FakeRay(), "").run(
            runner, Task("A_1", {}, ()), Slot(0, "", {}), lambda _: None, TaskSignals
        )
    assert raised.value.exit_code == 7
