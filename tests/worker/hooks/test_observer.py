"""What a training that has done nothing is called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmf_win.errors import UsageError
from mmf_win.protocol import Attempt

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from mmf_win.worker.hooks.observer import Observer  # noqa: E402
from mmf_win.worker.stopping import Stop  # noqa: E402

pytestmark = pytest.mark.torch


def observed(folder: Path, *, began: int, checkpoint: str | None = None) -> Observer:
    """The observer of a training that has begun at an update."""
    attempt = folder / "attempts" / "1"
    attempt.mkdir(parents=True)
    request = Attempt("train", "m", "mmf", str(attempt), checkpoint=checkpoint)
    observer = Observer(request, Stop(attempt / "stop"))
    training = SimpleNamespace(num_workers=0, seed=1, max_updates=4)
    trainer: Any = SimpleNamespace(
        num_updates=began,
        device=torch.device("cpu"),
        model=SimpleNamespace(parameters=list),
        config=SimpleNamespace(training=training),
    )
    micro: Any = SimpleNamespace(batch=1, rows=1, is_known_fit=False, fit="", finder=None)
    observer.training_started(trainer, None, micro, "fp32")
    trainer.num_updates += began < 4
    return observer


def test_a_training_that_made_no_update_is_not_done(user_dir: Path) -> None:
    """As with MMF's own checkpoint.resume_file, of which mmfw knows nothing."""
    with pytest.raises(UsageError, match="update 4"):
        observed(user_dir, began=4).require_update()


@pytest.mark.parametrize(("began", "checkpoint"), [(3, None), (4, "current.ckpt")])
def test_an_update_is_enough_and_after_the_last_one_so_is_its_validation(
    user_dir: Path, began: int, checkpoint: str | None
) -> None:
    observed(user_dir, began=began, checkpoint=checkpoint).require_update()
