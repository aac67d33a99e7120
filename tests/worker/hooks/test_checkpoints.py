"""The best validation after a resume, with an empty module instead of MMF's checkpoint."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.worlds.torch_files import write_checkpoint

pytestmark = pytest.mark.torch


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module ``checkpoints``, imported without MMF and removed after the test."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from mmf_win.worker import hooks

    name = f"{hooks.__name__}.checkpoints"
    mmf_names = ("mmf", "mmf.utils", "mmf.utils.checkpoint")
    fakes: dict[str, Any] = {fake_name: ModuleType(fake_name) for fake_name in (*mmf_names, name)}
    fakes["mmf.utils"].checkpoint = fakes["mmf.utils.checkpoint"]
    fakes["mmf.utils.checkpoint"].Checkpoint = object
    for fake_name, module in fakes.items():
        monkeypatch.setitem(sys.modules, fake_name, module)
    monkeypatch.setattr(hooks, "checkpoints", None, raising=False)
    del sys.modules[name]
    return import_module(name)


def restore_best(checkpoints: Any, folder: Path, *, minimize: bool) -> SimpleNamespace:
    """Return MMF's early stopping after restoring the best validation from a folder."""
    stopping = SimpleNamespace(minimize=minimize)
    trainer = SimpleNamespace(early_stopping=stopping)
    checkpoint = SimpleNamespace(trainer=trainer, _folder=folder, ckpt_prefix="")
    checkpoints.Checkpoint._restore_best(checkpoint)
    return stopping


@pytest.mark.parametrize(("minimize", "worst"), [(True, math.inf), (False, -math.inf)])
def test_without_best_checkpoint_any_value_is_an_improvement(
    checkpoints: Any, tmp_path: Path, minimize: bool, worst: float
) -> None:
    stopping = restore_best(checkpoints, tmp_path, minimize=minimize)
    assert stopping.best_monitored_value == worst
    assert (stopping.best_monitored_update, stopping.best_monitored_iteration) == (0, 0)


def test_best_validation_is_read_from_the_best_checkpoint(checkpoints: Any, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "best.ckpt", 7)
    stopping = restore_best(checkpoints, tmp_path, minimize=True)
    assert stopping.best_monitored_value == 0.5
    assert (stopping.best_monitored_update, stopping.best_monitored_iteration) == (7, 7)
