"""The best validation after a resume, with an empty module in the place of MMF's checkpoint."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.worlds.torch_files import checkpoint

pytestmark = pytest.mark.torch


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of checkpoints, imported without MMF."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    name = "mmf_win.worker.hooks.checkpoints"
    modules: dict[str, Any] = {
        each: ModuleType(each) for each in ("mmf", "mmf.utils", "mmf.utils.checkpoint")
    }
    modules["mmf.utils"].checkpoint = modules["mmf.utils.checkpoint"]
    modules["mmf.utils.checkpoint"].Checkpoint = object
    for each, module in modules.items():
        monkeypatch.setitem(sys.modules, each, module)
    monkeypatch.delitem(sys.modules, name, raising=False)
    import mmf_win.worker.hooks as package

    monkeypatch.setattr(package, "checkpoints", None, raising=False)  # restored at the end of the test
    from importlib import import_module

    module = import_module(name)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def restored(checkpoints: Any, folder: Path, *, minimize: bool) -> SimpleNamespace:
    """Return MMF's early stopping after the best validation was restored from a folder."""
    stopping = SimpleNamespace(minimize=minimize)
    trainer = SimpleNamespace(early_stopping=stopping)
    own = SimpleNamespace(trainer=trainer, _folder=folder, ckpt_prefix="")
    checkpoints.Checkpoint._restore_best(own)
    return stopping


@pytest.mark.parametrize(("minimize", "worst"), [(True, math.inf), (False, -math.inf)])
def test_without_a_best_checkpoint_any_value_is_better(
    checkpoints: Any, tmp_path: Path, minimize: bool, worst: float
) -> None:
    stopping = restored(checkpoints, tmp_path, minimize=minimize)
    assert stopping.best_monitored_value == worst
    assert (stopping.best_monitored_update, stopping.best_monitored_iteration) == (0, 0)


def test_the_best_is_that_of_the_best_checkpoint(checkpoints: Any, tmp_path: Path) -> None:
    checkpoint(tmp_path / "best.ckpt", 7)
    stopping = restored(checkpoints, tmp_path, minimize=True)
    assert stopping.best_monitored_value == 0.5
    assert (stopping.best_monitored_update, stopping.best_monitored_iteration) == (7, 7)
