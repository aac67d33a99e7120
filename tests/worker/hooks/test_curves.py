"""The curves that TensorBoard shows of a run, read by TensorBoard's own reader."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from mmf_win.paths import is_portable
from tests.worlds.tools import shown_by_tensorboard

with suppress(ImportError):  # where the extra `train` is not installed, these tests are not run
    from mmf_win.worker.hooks.observer import Curves

pytestmark = pytest.mark.torch


def trained(curves: Curves, first: int, last: int, loss: float) -> None:
    curves.write("train_started", {"update": first})
    for update in range(first + 1, last + 1):
        curves.write("train", {"update": update, "loss": loss, "lr": 1e-5, "max_mem_mib": None, "epoch": 1})
        curves.write("val", {"update": update, "metrics": {"hateful_memes/roc_auc": 0.5, "x": None}})
    curves.write("val", {"update": 1, "metrics": {"hateful_memes/roc_auc": 0.9}, "final": True})
    curves.write("alive", {})


def test_each_update_has_its_figures(user_dir: Path) -> None:
    trained(Curves(user_dir), 0, 3, loss=0.5)
    assert shown_by_tensorboard(user_dir, "train/loss") == {1: 0.5, 2: 0.5, 3: 0.5}
    assert shown_by_tensorboard(user_dir, "train/lr") == pytest.approx({1: 1e-5, 2: 1e-5, 3: 1e-5})
    assert shown_by_tensorboard(user_dir, "val/roc_auc") == {1: 0.5, 2: 0.5, 3: 0.5}, "the final is of none"
    assert all(is_portable(path.name) for path in user_dir.iterdir())


def test_a_run_that_goes_on_takes_the_place_of_what_came_after_its_checkpoint(user_dir: Path) -> None:
    trained(Curves(user_dir), 0, 4, loss=0.5)
    trained(Curves(user_dir), 2, 5, loss=0.25)
    assert shown_by_tensorboard(user_dir, "train/loss") == {1: 0.5, 2: 0.5, 3: 0.25, 4: 0.25, 5: 0.25}


def test_a_prediction_has_no_curves(user_dir: Path) -> None:
    Curves(user_dir).write("predict", {"done": 1, "total": 2})
    assert not list(user_dir.iterdir())
