"""What a training tells of its updates and validations, and what TensorBoard's own reader finds of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmf_win.errors import UsageError
from mmf_win.paths import is_portable
from mmf_win.protocol import AttemptRequest, EventReader, read_events
from mmf_win.protocol.attempt import TrainTask
from mmf_win.worker.stop_signal import StopSignal
from tests.worlds.event_log import EventLog
from tests.worlds.tools import LazyModule, read_tensorboard_scalars, requires_package

torch = LazyModule("torch")
observing = LazyModule("mmf_win.worker.hooks.observer")
session = LazyModule("mmf_win.worker.hooks.session")

pytestmark = [pytest.mark.torch, requires_package("torch")]


def observed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, began: int, checkpoint: str | None = None
) -> Any:
    """The session of a training that has begun at an update."""
    attempt = folder / "attempts" / "1"
    attempt.mkdir(parents=True)
    request = AttemptRequest(TrainTask(), "m", "mmf", str(attempt), checkpoint=checkpoint)
    observer = observing.Observer(request, StopSignal(attempt / "stop"))
    settings = SimpleNamespace(num_workers=0, seed=1, max_updates=4)
    trainer: Any = SimpleNamespace(
        num_updates=began,
        device=torch.device("cpu"),
        model=SimpleNamespace(parameters=list),
        config=SimpleNamespace(training=settings),
    )
    micro: Any = SimpleNamespace(batch_size=1, rows=1, is_known_fit=False, fit_key="", search=None)
    monkeypatch.setattr("mmf_win.worker.hooks.session.MicroBatchSizer", lambda *_: micro)
    training = session.TrainingSession(observer, trainer, None, "fp32")
    trainer.num_updates += began < 4
    return training


def test_a_training_that_made_no_update_is_not_done(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with MMF's own checkpoint.resume_file, of which mmfw knows nothing."""
    with pytest.raises(UsageError, match="update 4"):
        observed(user_dir, monkeypatch, began=4).require_update()


@pytest.mark.parametrize(("began", "checkpoint"), [(3, None), (4, "current.ckpt")])
def test_an_update_is_enough_and_after_the_last_one_so_is_its_validation(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch, began: int, checkpoint: str | None
) -> None:
    observed(user_dir, monkeypatch, began=began, checkpoint=checkpoint).require_update()


def trained(curves: Any, first: int, last: int, loss: float) -> None:
    curves.write("train_started", {"update": first})
    for update in range(first + 1, last + 1):
        curves.write("train", {"update": update, "loss": loss, "lr": 1e-5, "max_mem_mib": None, "epoch": 1})
        curves.write("val", {"update": update, "metrics": {"auroc": 0.5, "x": None}})
    curves.write("val", {"update": 1, "metrics": {"auroc": 0.9}, "final": True})
    curves.write("alive", {})


def test_each_update_has_its_figures_and_a_run_that_goes_on_takes_the_place_of_what_came_after_its_checkpoint(
    user_dir: Path,
) -> None:
    trained(observing.TensorBoardLogger(user_dir), 0, 4, loss=0.5)
    assert read_tensorboard_scalars(user_dir, "train/loss") == dict.fromkeys(range(1, 5), 0.5)
    assert read_tensorboard_scalars(user_dir, "train/lr") == pytest.approx(dict.fromkeys(range(1, 5), 1e-5))
    auroc = read_tensorboard_scalars(user_dir, "val/auroc")
    assert auroc == dict.fromkeys(range(1, 5), 0.5), "the final is of none"
    assert all(is_portable(path.name) for path in user_dir.iterdir())
    trained(observing.TensorBoardLogger(user_dir), 2, 5, loss=0.25)
    assert read_tensorboard_scalars(user_dir, "train/loss") == {1: 0.5, 2: 0.5, 3: 0.25, 4: 0.25, 5: 0.25}


@pytest.mark.parametrize("began", ["earlier", "now"])
def test_a_run_that_an_earlier_version_began_keeps_its_names_of_metrics(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch, began: str
) -> None:
    of_mmf = {"hateful_memes/roc_auc": 0.75, "total_loss": 0.5}
    if began == "earlier":
        EventLog(user_dir / "events.jsonl", "1").write("val", update=3, metrics=of_mmf)
    training = observed(user_dir, monkeypatch, began=3)
    training._checkpoint = SimpleNamespace(resume_state=SimpleNamespace(validated_update=4))
    meters = {f"val/{name}": SimpleNamespace(global_avg=value) for name, value in of_mmf.items()}
    training.on_validation_end(SimpleNamespace(meters=meters))
    told = [
        event["metrics"]
        for event in EventReader(user_dir / "events.jsonl", keep_mmf_names=True).poll()
        if event["kind"] == "val"
    ]
    names = {"earlier": ("val/roc_auc", "val/total_loss"), "now": ("val/auroc", "val/loss")}
    assert told[-1] == (of_mmf if began == "earlier" else {"auroc": 0.75, "loss": 0.5})
    assert [read_tensorboard_scalars(user_dir, name) for name in names[began]] == [{4: 0.75}, {4: 0.5}]
    read = [event["metrics"] for event in read_events(user_dir / "events.jsonl") if event["kind"] == "val"]
    assert all(metrics == {"auroc": 0.75, "loss": 0.5} for metrics in read)


def test_a_prediction_has_no_curves(user_dir: Path) -> None:
    observing.TensorBoardLogger(user_dir).write("predict", {"done": 1, "total": 2})
    assert not list(user_dir.iterdir())
