"""A training from start to end: the common part of both adapters to MMF's trainers."""

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

_MIN_ROWS_FOR_ODD_LOSS = 4  # with fewer rows, the mean loss may be odd by chance


class TrainingSession:
    """A training with its reports, or a check of its model; the run is saved before it stops.

    Attributes:
        micro_batch: The size of the micro-batches.
        replay: Locates the source of non-finite values.
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

            check.run_checks(observer, trainer, micro.rows_per_process)
        self._is_head_fresh = trainer.num_updates == 0 and has_fresh_head(trainer.model, observer.loaded_tensors)
        if request.train_task.find_micro_batch and micro.search is None:
            observer.write_event("micro_batch", rows=micro.rows, found=True)
        self._wait_profiler = DataWaitProfiler(trainer, observer.phase_timer, get_world_size())
        if request.profile_updates and observer.is_main:
            self._wait_profiler = Profiler(request, trainer, observer.phase_timer)

    def step_in_parts(self, batch: Any, step: Callable[[float, Any], Any]) -> Any:
        """Compute the gradients of a batch part by part.

        Args:
            batch: The rows of this rank.
            step: As in :func:`~mmf_win.worker.hooks.batch_splitting.accumulate_gradients`.

        Returns:
            The report of the batch, with the number of rows of all ranks.
        """
        from mmf_win.worker.hooks.batch_splitting import accumulate_gradients, split_batch  # imports MMF

        weight, total_rows = self._checkpoint.resume_state.batch_share()
        parts = split_batch(batch, self.micro_batch.rows_per_process, weight)
        required = self._trainer.metrics.required_params
        report = accumulate_gradients(self._trainer.model, parts, self.replay.wrap_step(step), required)
        report.batch_size = total_rows
        return report

    def check_losses(self, losses: Mapping[str, torch.Tensor], rows: int) -> None:
        """Check the losses of an update before its step, and write a note about an odd first loss.

        If autograd's anomaly detection is enabled, a NaN is left to it, because it finds the operation.

        Raises:
            DivergedError: The loss is not finite.
        """
        done = self._trainer.num_updates
        total = float(sum(loss.detach().float().mean() for loss in losses.values()))
        if math.isinf(total) or (math.isnan(total) and not torch.is_anomaly_enabled()):
            description = "infinite" if math.isinf(total) else "not a number"
            raise DivergedError(f"the loss of update {done + 1} is {description}", done, "loss")
        is_first_loss, self._is_head_fresh = self._is_head_fresh, False
        if is_first_loss and rows >= _MIN_ROWS_FOR_ODD_LOSS and (text := describe_odd_loss(losses)):
            self._observer.write_event("note", text=text)

    def on_log(self, scalars: Mapping[str, Any]) -> None:
        """Write a ``train`` event with the loss, the learning rate, the speed and the peak GPU memory.

        Args:
            scalars: The values that MMF logs at this update, such as ``train/total_loss``.
        """
        self._observer.defer_stop()  # an update that is reported must not be lost
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
        """Measure an update; save and stop if requested."""
        self._checkpoint.resume_state.seed_rank()
        if waiting := self._wait_profiler.on_update_end():
            report_data_wait(self._observer, self._trainer, waiting)
        self._observer.on_update_end()

    def on_validation_end(self, meter: Any, *, final: bool = False) -> None:
        """Write a ``val`` event with the metrics of a validation.

        Args:
            meter: MMF's averages of the metrics.
            final: Whether this is the validation of the best checkpoint after training.
        """
        metrics = {key.removeprefix("val/"): _finite_number(value.global_avg) for key, value in meter.meters.items()}
        metrics = metrics if self._keeps_metric_names else rename_metrics(metrics)
        update = self._checkpoint.resume_state.validated_update
        data = self._request.train_task.splits_read.get("val")
        self._observer.write_event("val", update=update, metrics=metrics, final=final, data=data)

    def require_update(self) -> None:
        """Check that training made at least one update.

        Raises:
            UsageError: No update was made.
        """
        # mmfw checks its own checkpoints before; after them, there may only be a validation to repeat.
        if self._trainer.num_updates == self._first_update and self._request.checkpoint is None:
            message = f"no update was made: training started and ended at update {self._first_update}"
            hint = "raise training.max_updates or training.max_epochs, or start from an earlier checkpoint"
            raise UsageError(message, hint=hint)

    def on_train_end(self) -> None:
        """Share the restored best weights with all ranks; they are not saved as current weights."""
        broadcast_weights(self._trainer)
        if isinstance(self._wait_profiler, Profiler):
            self._observer.write_event("profiled", **self._wait_profiler.finish())
        self._observer.end()

    def _save(self) -> int:
        update: int = self._trainer.num_updates
        self._checkpoint.save(update, self._trainer.current_iteration, update_best=False)
        return update


def report_prediction_start(observer: Observer, trainer: Any, precision: str) -> None:
    """Write the ``predict_started`` event; the model is loaded."""
    from mmf.utils.general import get_batch_size

    values = {"device": str(trainer.device), "precision": precision, "batch": get_batch_size()}
    if isinstance(observer.request.task, PredictTask):
        values["sha256"] = cached_annotation_file(Path(observer.request.task.annotations_file)).sha256
    observer.begin("predict_started", **values, workers=trainer.config.training.num_workers)


def report_data_wait(observer: Observer, trainer: Any, waiting: DataWaitStats) -> None:
    """Write a note that the model waits for data if more workers may help and fit into memory."""
    workers = waiting.recommend_workers() if waiting.is_significant else None
    events = read_events(observer.request.events)
    if workers is None or any("workers" in (event.get("next") or {}) for event in events):
        return
    will_cache_images = trainer.current_epoch == 1 and is_image_cache_used(observer.request, trainer)
    remark = ", less once all images are decoded" if will_cache_images else ""
    observer.write_event("note", text=f"{waiting}{remark}: training.num_workers={workers} may help")


def _has_mmf_metric_names(events: Path) -> bool:
    """Return whether an earlier version started the run, whose curves keep MMF's metric names."""
    stored_events = EventReader(events, keep_mmf_names=True).poll()
    metrics: dict[str, Any] = next((event["metrics"] for event in stored_events if event.get("metrics")), {})
    return metrics != rename_metrics(metrics)


def _finite_number(value: Any) -> float | None:
    """Return a number as float; ``None`` for ``None`` and for NaN and infinity, which JSON cannot represent."""
    return None if value is None or not math.isfinite(value) else float(value)


def _finite_updates(updates: float | None) -> int | None:
    return None if updates is None or math.isinf(updates) else int(updates)
