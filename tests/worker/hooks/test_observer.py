"""Events of updates and validations, and the curves that TensorBoard's reader finds."""

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


def start_session(folder: Path, monkeypatch: pytest.MonkeyPatch, *, start: int, checkpoint: str | None = None) -> Any:
    """Return the session of a training that started at an update."""
    attempt = folder / "attempts" / "1"
    attempt.mkdir(parents=True)
    request = AttemptRequest(TrainTask(), "m", "mmf", str(attempt), checkpoint=checkpoint)
    observer = observing.Observer(request, StopSignal(attempt / "stop"))
    settings = SimpleNamespace(num_workers=0, seed=1, max_updates=4)
    trainer: Any = SimpleNamespace(
        num_updates=start,
        max_updates=4,
        current_epoch=1,
        optimizer=SimpleNamespace(param_groups=[{"lr": 0.1}]),
        device=torch.device("cpu"),
        model=SimpleNamespace(parameters=list, named_parameters=list),
        config=SimpleNamespace(training=settings),
    )
    micro: Any = SimpleNamespace(batch_size=1, rows=1, is_known_fit=False, fit_key="", search=None)
    monkeypatch.setattr("mmf_win.worker.hooks.session.MicroBatchSizer", lambda *_: micro)
    training = session.TrainingSession(observer, trainer, None, "fp32")
    trainer.num_updates += start < 4
    return training


def test_training_without_update_is_an_error(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens with MMF's checkpoint.resume_file, which mmfw does not check."""
    with pytest.raises(UsageError, match="update 4"):
        start_session(user_dir, monkeypatch, start=4).require_update()


@pytest.mark.parametrize(("start", "checkpoint"), [(3, None), (4, "current.ckpt")])
def test_one_update_or_a_complete_checkpoint_is_enough(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch, start: int, checkpoint: str | None
) -> None:
    start_session(user_dir, monkeypatch, start=start, checkpoint=checkpoint).require_update()


def test_stop_waits_before_an_update_is_reported(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first update could be in the events, but in no checkpoint."""
    steps: list[str] = []
    monkeypatch.setattr(StopSignal, "defer_stop", lambda _: steps.append("stop deferred"))
    monkeypatch.setattr(observing.Observer, "write_event", lambda _, kind, **_values: steps.append(kind))
    start_session(user_dir, monkeypatch, start=0).on_log({"train/total_loss": 0.5})
    assert steps[-2:] == ["stop deferred", "train"]


def log_training(curves: Any, first: int, last: int, loss: float) -> None:
    curves.write("train_started", {"update": first})
    for update in range(first + 1, last + 1):
        curves.write("train", {"update": update, "loss": loss, "lr": 1e-5, "max_mem_mib": None, "epoch": 1})
        curves.write("val", {"update": update, "metrics": {"auroc": 0.5, "x": None}})
    curves.write("val", {"update": 1, "metrics": {"auroc": 0.9}, "final": True})
    curves.write("alive", {})


def test_resumed_run_replaces_curves_after_its_checkpoint(user_dir: Path) -> None:
    log_training(observing.TensorBoardLogger(user_dir), 0, 4, loss=0.5)
    assert read_tensorboard_scalars(user_dir, "train/loss") == dict.fromkeys(range(1, 5), 0.5)
    assert read_tensorboard_scalars(user_dir, "train/lr") == pytest.approx(dict.fromkeys(range(1, 5), 1e-5))
    auroc = read_tensorboard_scalars(user_dir, "val/auroc")
    assert auroc == dict.fromkeys(range(1, 5), 0.5), "the final validation must not be in the curve"
    assert all(is_portable(path.name) for path in user_dir.iterdir())
    log_training(observing.TensorBoardLogger(user_dir), 2, 5, loss=0.25)
    assert read_tensorboard_scalars(user_dir, "train/loss") == {1: 0.5, 2: 0.5, 3: 0.25, 4: 0.25, 5: 0.25}


@pytest.mark.parametrize("start", ["earlier", "now"])
def test_run_of_an_earlier_version_keeps_its_metric_names(
    user_dir: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    mmf_metrics = {"hateful_memes/roc_auc": 0.75, "total_loss": 0.5}
    if start == "earlier":
        EventLog(user_dir / "events.jsonl", "1").write("val", update=3, metrics=mmf_metrics)
    training = start_session(user_dir, monkeypatch, start=3)
    training._checkpoint = SimpleNamespace(resume_state=SimpleNamespace(validated_update=4))
    meters = {f"val/{name}": SimpleNamespace(global_avg=value) for name, value in mmf_metrics.items()}
    training.on_validation_end(SimpleNamespace(meters=meters))
    stored = [
        event["metrics"]
        for event in EventReader(user_dir / "events.jsonl", keep_mmf_names=True).poll()
        if event["kind"] == "val"
    ]
    names = {"earlier": ("val/roc_auc", "val/total_loss"), "now": ("val/auroc", "val/loss")}
    assert stored[-1] == (mmf_metrics if start == "earlier" else {"auroc": 0.75, "loss": 0.5})
    assert [read_tensorboard_scalars(user_dir, name) for name in names[start]] == [{4: 0.75}, {4: 0.5}]
    renamed = [event["metrics"] for event in read_events(user_dir / "events.jsonl") if event["kind"] == "val"]
    assert all(metrics == {"auroc": 0.75, "loss": 0.5} for metrics in renamed)


def test_prediction_writes_no_curves(user_dir: Path) -> None:
    observing.TensorBoardLogger(user_dir).write("predict", {"done": 1, "total": 2})
    assert not list(user_dir.iterdir())
