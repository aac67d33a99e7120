"""A training from its start to its end: what both adapters to MMF's trainers do in the same way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from mmf_win.compat.mmf_data import cached_annotation_file
from mmf_win.errors import UsageError
from mmf_win.protocol import EventReader, read_events
from mmf_win.protocol.attempt import CheckTask, PredictTask
from mmf_win.protocol.data_wait import DataWaitStats
from mmf_win.protocol.metrics import rename_metrics
from mmf_win.worker.hooks.first_loss import describe_odd_loss, has_fresh_head
from mmf_win.worker.hooks.micro_batch import MicroBatchSizer
from mmf_win.worker.hooks.nonfinite import Replay
from mmf_win.worker.hooks.observer import Observer
from mmf_win.worker.hooks.phase_timer import DataWaitProfiler, Profiler, is_image_cache_used
from mmf_win.worker.hooks.ranks import broadcast_weights, get_world_size
from mmf_win.worker.outcome import DivergedError

_MIN_ROWS_FOR_ODD_LOSS = 4  # rows whose mean loss chance alone makes odd


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
        self.micro_batch = micro = MicroBatchSizer(observer, trainer, precision)
        training = trainer.config.training
        self._first_update = self._last_logged_update = trainer.num_updates
        self._last_log_time = time.monotonic()
        self._keeps_metric_names = _has_mmf_metric_names(request.events)
        self._max_updates = request.profile_updates or request.train_task.total_updates
        observer.begin(
            "train_started",
            None if request.discards_weights else self._save,
            update=trainer.num_updates,
            max_updates=self._max_updates or _finite_updates(training.max_updates),
            device=str(trainer.device),
            precision=precision,
            batch=micro.batch_size,
            micro_batch=micro.rows,
            searching=micro.search is not None,
            workers=training.num_workers,
            processes=get_world_size(),
            seed=training.seed,
            parameters=sum(p.numel() for p in trainer.model.parameters()),
            known_fit=micro.is_known_fit,
            fit=micro.fit_key,
            data=request.train_task.splits_read.get("train"),
        )
        if isinstance(request.task, CheckTask):
            from mmf_win.worker.tasks import check  # imports MMF

            check.run(observer, trainer, micro.rows_per_process)
        self._is_head_fresh = trainer.num_updates == 0 and has_fresh_head(
            trainer.model, observer.loaded_tensors
        )
        if request.train_task.find_micro_batch and micro.search is None:
            observer.write_event("micro_batch", rows=micro.rows, found=True)
        self._wait_profiler = DataWaitProfiler(trainer, observer.phase_timer, get_world_size())
        if request.profile_updates and observer.is_main:
            self._wait_profiler = Profiler(request, trainer, observer.phase_timer)

    def step_in_parts(self, batch: Any, step: Callable[[float, Any], Any]) -> Any:
        """Make the gradients of a batch, and return its report, with the number of rows of all ranks.

        ``step`` is as :func:`~mmf_win.worker.hooks.batch_splitting.accumulate_gradients` has it.
        """
        from mmf_win.worker.hooks.batch_splitting import accumulate_gradients, split_batch  # imports MMF

        weight, rows_of_all = self._checkpoint.resume_state.batch_share()
        parts, required = (
            split_batch(batch, self.micro_batch.rows_per_process, weight),
            self._trainer.metrics.required_params,
        )
        report = accumulate_gradients(self._trainer.model, parts, self.replay.wrap_step(step), required)
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
            raise DivergedError(f"the loss of update {done + 1} is {what}", done, "loss")
        fresh, self._is_head_fresh = self._is_head_fresh, False
        if fresh and rows >= _MIN_ROWS_FOR_ODD_LOSS and (text := describe_odd_loss(losses)):
            self._observer.write_event("note", text=text)

    def on_log(self, scalars: Mapping[str, Any]) -> None:
        """Report an update whose figures MMF has collected."""
        now, trainer = time.monotonic(), self._trainer
        done = trainer.num_updates - self._last_logged_update
        self._observer.write_event(
            "train",
            update=trainer.num_updates,
            max_updates=self._max_updates or _finite_updates(trainer.max_updates),
            epoch=trainer.current_epoch,
            loss=_finite_number(scalars.get("train/total_loss")),
            lr=_finite_number(trainer.optimizer.param_groups[0]["lr"]),
            updates_per_s=round(done / max(now - self._last_log_time, 1e-9), 4),
            max_mem_mib=torch.cuda.max_memory_allocated() // 2**20 if torch.cuda.is_available() else None,
        )
        self._last_logged_update, self._last_log_time = trainer.num_updates, now

    def on_update_end(self) -> None:
        """Measure an update, and raise StopRequested if the run was asked to stop; it is saved then."""
        self._checkpoint.resume_state.seed_rank()
        if waiting := self._wait_profiler.on_update_end():
            report_data_wait(self._observer, self._trainer, waiting)
        self._observer.on_update_end()

    def on_validation_end(self, meter: Any, *, final: bool = False) -> None:
        """Report a validation, ``final`` if it follows training and scores the best checkpoint."""
        metrics = {
            key.removeprefix("val/"): _finite_number(value.global_avg) for key, value in meter.meters.items()
        }
        metrics = metrics if self._keeps_metric_names else rename_metrics(metrics)
        update, data = (
            self._checkpoint.resume_state.validated_update,
            self._request.train_task.splits_read.get("val"),
        )
        self._observer.write_event("val", update=update, metrics=metrics, final=final, data=data)

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
        broadcast_weights(self._trainer)
        if isinstance(self._wait_profiler, Profiler):
            self._observer.write_event("profiled", **self._wait_profiler.finish())
        self._observer.end()

    def _save(self) -> int:
        update: int = self._trainer.num_updates
        self._checkpoint.save(update, self._trainer.current_iteration, update_best=False)
        return update


def report_prediction_start(observer: Observer, trainer: Any, precision: str) -> None:
    """Report that the model is loaded and prediction starts."""
    from mmf.utils.general import get_batch_size

    values = {"device": str(trainer.device), "precision": precision, "batch": get_batch_size()}
    if isinstance(observer.request.task, PredictTask):
        values["sha256"] = cached_annotation_file(Path(observer.request.task.annotations_file)).sha256
    observer.begin("predict_started", **values, workers=trainer.config.training.num_workers)


def report_data_wait(observer: Observer, trainer: Any, waiting: DataWaitStats) -> None:
    """Note that the model waits for data, if more workers may help and fit into memory."""
    workers = waiting.recommend_workers() if waiting.is_significant else None
    events = read_events(observer.request.events)
    if workers is None or any("workers" in (event.get("next") or {}) for event in events):
        return
    first = trainer.current_epoch == 1 and is_image_cache_used(observer.request, trainer)
    later = ", and less once all images are decoded" if first else ""
    observer.write_event("note", text=f"{waiting}{later}: training.num_workers={workers} may help")


def _has_mmf_metric_names(events: Path) -> bool:
    """Return whether an earlier version began the run: its series keep MMF's names of metrics."""
    told = EventReader(events, keep_mmf_names=True).poll()
    first: dict[str, Any] = next((event["metrics"] for event in told if event.get("metrics")), {})
    return first != rename_metrics(first)


def _finite_number(value: Any) -> float | None:
    """Return a finite number or None; JSON has no others."""
    return None if value is None or not math.isfinite(value) else float(value)


def _finite_updates(updates: float | None) -> int | None:
    return None if updates is None or math.isinf(updates) else int(updates)
