"""A training from its start to its end: what both adapters to MMF's trainers do in the same way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from mmf_win.compat.mmf_data import read_once
from mmf_win.errors import UsageError
from mmf_win.protocol import EventReader, read_events
from mmf_win.protocol.attempt import CheckTask, PredictTask
from mmf_win.protocol.data_wait import DataWaitStats
from mmf_win.protocol.metrics import rename_metrics
from mmf_win.worker.hooks.first_loss import is_fresh, oddity
from mmf_win.worker.hooks.micro_batch import MicroBatch
from mmf_win.worker.hooks.nonfinite import Replay
from mmf_win.worker.hooks.observer import Observer
from mmf_win.worker.hooks.phase_timer import Profiler, WaitWatch, decodes_once
from mmf_win.worker.hooks.ranks import ranks, share_weights
from mmf_win.worker.outcome import Diverged

_FEW = 4  # rows whose mean loss chance alone makes odd


class TrainingSession:
    """Reports a training from its start, or checks its model instead, and saves it before it is left.

    Attributes:
        micro: how many rows go through the model in one pass.
        replay: finds where a value that is not finite comes from.
    """

    def __init__(self, observer: Observer, trainer: Any, checkpoint: Any, precision: str) -> None:
        self._observer, self._trainer, self._checkpoint = observer, trainer, checkpoint
        self._request = request = observer.request
        self.replay = Replay(trainer)
        self.micro = micro = MicroBatch(observer, trainer, precision)
        training = trainer.config.training
        self._first_update = self._last_update = trainer.num_updates
        self._since = time.monotonic()
        self._keeps_names = _has_mmf_names(request.events)
        self._total = request.profile_updates or request.train_task.total_updates
        observer.begin(
            "train_started",
            None if request.discards_weights else self._save,
            update=trainer.num_updates,
            max_updates=self._total or _finite(training.max_updates),
            device=str(trainer.device),
            precision=precision,
            batch=micro.batch,
            micro_batch=micro.rows,
            searching=micro.finder is not None,
            workers=training.num_workers,
            processes=ranks(),
            seed=training.seed,
            parameters=sum(p.numel() for p in trainer.model.parameters()),
            known_fit=micro.is_known_fit,
            fit=micro.fit,
            data=request.train_task.splits_read.get("train"),
        )
        if isinstance(request.task, CheckTask):
            from mmf_win.worker.tasks import check  # imports MMF

            check.run(observer, trainer, micro.limit)
        self._fresh = trainer.num_updates == 0 and is_fresh(trainer.model, observer.copied)
        if request.train_task.find_micro_batch and micro.finder is None:
            observer.event("micro_batch", rows=micro.rows, found=True)
        self._measured = WaitWatch(trainer, observer.clock, ranks())
        if request.profile_updates and observer.is_main:
            self._measured = Profiler(request, trainer, observer.clock)

    def step_in_parts(self, batch: Any, step: Callable[[float, Any], Any]) -> Any:
        """Make the gradients of a batch, and return its report, with the number of rows of all ranks.

        ``step`` is as :func:`~mmf_win.worker.hooks.splitting.step_through` has it.
        """
        from mmf_win.worker.hooks.splitting import split, step_through  # imports MMF

        weight, rows_of_all = self._checkpoint.resume_state.share()
        parts, required = split(batch, self.micro.limit, weight), self._trainer.metrics.required_params
        report = step_through(self._trainer.model, parts, self.replay.of_batch(step), required)
        report.batch_size = rows_of_all
        return report

    def check_losses(self, losses: Mapping[str, torch.Tensor], rows: int) -> None:
        """Raise Diverged before the step of an update whose loss is not finite; note an odd first loss.

        Autograd's anomaly detection looks for the operation itself, so a NaN is left to it where it is on.
        """
        done = self._trainer.num_updates
        total = float(sum(loss.detach().float().mean() for loss in losses.values()))
        if math.isinf(total) or (math.isnan(total) and not torch.is_anomaly_enabled()):
            what = "infinite" if math.isinf(total) else "not a number"
            raise Diverged(f"the loss of update {done + 1} is {what}", done, "loss")
        fresh, self._fresh = self._fresh, False
        if fresh and rows >= _FEW and (text := oddity(losses)):
            self._observer.event("note", text=text)

    def on_log(self, scalars: Mapping[str, Any]) -> None:
        """Report an update whose figures MMF has collected."""
        now, trainer = time.monotonic(), self._trainer
        done = trainer.num_updates - self._last_update
        self._observer.event(
            "train",
            update=trainer.num_updates,
            max_updates=self._total or _finite(trainer.max_updates),
            epoch=trainer.current_epoch,
            loss=_number(scalars.get("train/total_loss")),
            lr=_number(trainer.optimizer.param_groups[0]["lr"]),
            updates_per_s=round(done / max(now - self._since, 1e-9), 4),
            max_mem_mib=torch.cuda.max_memory_allocated() // 2**20 if torch.cuda.is_available() else None,
        )
        self._last_update, self._since = trainer.num_updates, now

    def on_update_end(self) -> None:
        """Measure an update, and raise StopRequested if the run was asked to stop; it is saved then."""
        self._checkpoint.resume_state.own_randomness()
        if waiting := self._measured.updated():
            note_waiting(self._observer, self._trainer, waiting)
        self._observer.update_ended()

    def on_validation_end(self, meter: Any, *, final: bool = False) -> None:
        """Report a validation, ``final`` if it follows training and scores the best checkpoint."""
        metrics = {key.removeprefix("val/"): _number(value.global_avg) for key, value in meter.meters.items()}
        metrics = metrics if self._keeps_names else rename_metrics(metrics)
        update, data = (
            self._checkpoint.resume_state.validated,
            self._request.train_task.splits_read.get("val"),
        )
        self._observer.event("val", update=update, metrics=metrics, final=final, data=data)

    def require_update(self) -> None:
        """Raise UsageError if training ends without having made an update."""
        # A checkpoint that mmfw named was checked before; there may have been a validation to repeat.
        if self._trainer.num_updates == self._first_update and self._request.checkpoint is None:
            raise UsageError(
                f"no update was made: training began and ended at update {self._first_update}",
                hint="raise training.max_updates or training.max_epochs, or begin with an earlier checkpoint",
            )

    def on_train_end(self) -> None:
        """Share the best checkpoint's weights, which MMF has restored; they are not saved as current ones."""
        share_weights(self._trainer)
        if isinstance(self._measured, Profiler):
            self._observer.event("profiled", **self._measured.ended())
        self._observer.end()

    def _save(self) -> int:
        update: int = self._trainer.num_updates
        self._checkpoint.save(update, self._trainer.current_iteration, update_best=False)
        return update


def report_prediction(observer: Observer, trainer: Any, precision: str) -> None:
    """Report that the model is loaded and prediction starts."""
    from mmf.utils.general import get_batch_size

    values = {"device": str(trainer.device), "precision": precision, "batch": get_batch_size()}
    if isinstance(observer.request.task, PredictTask):
        values["sha256"] = read_once(Path(observer.request.task.annotations_file)).sha256
    observer.begin("predict_started", **values, workers=trainer.config.training.num_workers)


def note_waiting(observer: Observer, trainer: Any, waiting: DataWaitStats) -> None:
    """Note that the model waits for data, if more workers may help and fit into memory."""
    workers = waiting.recommend_workers() if waiting.is_significant else None
    events = read_events(observer.request.events)
    if workers is None or any("workers" in (event.get("next") or {}) for event in events):
        return
    first = trainer.current_epoch == 1 and decodes_once(observer.request, trainer)
    later = ", and less once all images are decoded" if first else ""
    observer.event("note", text=f"{waiting}{later}: training.num_workers={workers} may help")


def _has_mmf_names(events: Path) -> bool:
    """Return whether an earlier version began the run: its series keep MMF's names of metrics."""
    told = EventReader(events, keep_mmf_names=True).poll()
    first: dict[str, Any] = next((event["metrics"] for event in told if event.get("metrics")), {})
    return first != rename_metrics(first)


def _number(value: Any) -> float | None:
    """Return a finite number or None; JSON has no others."""
    return None if value is None or not math.isfinite(value) else float(value)


def _finite(updates: float | None) -> int | None:
    return None if updates is None or math.isinf(updates) else int(updates)
