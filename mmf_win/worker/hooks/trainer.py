"""Hooks for MMF 1.0.0rc10, which has no callbacks: a registered trainer."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from mmf.common.registry import registry
from mmf.common.sample import SampleList
from mmf.trainers import base_trainer
from mmf.trainers.base_trainer import BaseTrainer
from mmf.utils.general import clip_gradients
from mmf.utils.timer import Timer

from mmf_win.worker.hooks import batch_splitting, checkpoints, fast_mode, precision, ranks
from mmf_win.worker.hooks.observer import Observer
from mmf_win.worker.hooks.phase_timer import TimedMethod
from mmf_win.worker.hooks.session import TrainingSession, report_prediction_start


class MmfwTrainer(BaseTrainer):  # type: ignore[misc]
    """Trainer of MMF with hooks; it stops exactly at ``max_updates``, where MMF makes one more update."""

    _session: TrainingSession

    def __init__(self, observer: Observer, trainers: list[Any], config: Any) -> None:
        super().__init__(config)
        trainers.append(self)
        self._observer, self._after_training = observer, False

    def parallelize_model(self) -> None:
        """Wrap the model for several ranks and limit the rows of evaluation passes."""
        ranks.wrap_ddp(self)
        batch_splitting.limit_eval_batch(self.model, self._observer.request.eval_batch)

    def predict(self, dataset_type: str) -> None:
        """Report that prediction starts, and predict."""
        report_prediction_start(self._observer, self, self._precision)
        super().predict(dataset_type)

    def load_extras(self) -> None:
        """Choose the precision before MMF loads a checkpoint, and resume the learning-rate schedule.

        MMF restarts the schedule and would make one update at its first rate.
        """
        self._precision, self.scaler = precision.configure_precision(self._observer, self)
        if self._observer.request.fast:
            fast_mode.enable_channels_last(self.model, self._observer)
        super().load_extras()
        if self.num_updates and self.lr_scheduler is not None:
            self.lr_scheduler.step(self.num_updates - 1)

    def train(self) -> None:
        """Report that training starts, repeat an interrupted validation, and train."""
        if "train" in self.run_type:
            self._session = TrainingSession(self._observer, self, self.checkpoint, self._precision)
            self.train_timer, self.snapshot_timer = Timer(), Timer()
            if self.checkpoint.resume_state.validate_if_due(self._try_full_validation):
                super().finalize()
                return
        super().train()

    def finalize(self) -> None:
        """Require at least one update, then validate and restore the best checkpoint."""
        self._session.require_update()
        super().finalize()

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate; an interrupted evaluation is repeated when the run resumes."""
        with self.checkpoint.resume_state.track_validation():
            return super().evaluate(*args, **kwargs)

    def inference(self) -> None:
        """Score the validation set with the best checkpoint."""
        if self._observer.request.is_training:
            self._after_training = True
            self._session.on_train_end()
        super().inference()

    def _forward_pass(self, batch: Any) -> Any:
        if self.model.training:
            self._session.micro_batch.on_update_start()
            self.optimizer.zero_grad()
            return self._session.step_in_parts(batch, self._step)
        self._observer.heartbeat()
        report = super()._forward_pass(batch)
        if self._observer.request.eval_batch is not None:  # MMF keeps all reports until the end
            for key, value in report.items():
                report[key] = value.to("cpu") if hasattr(value, "to") else value
        return report

    def _step(self, share: float, rows: Any) -> Any:
        report = super()._forward_pass(rows)
        self._session.check_losses(report.losses, rows.get_batch_size())
        self.scaler.scale(self._extract_loss(report) * share).backward()
        for key in self.metrics.required_params:
            if torch.is_tensor(report.get(key)):
                report[key] = report[key].detach()
        report.losses = {key: loss.detach().mean() * share for key, loss in report.losses.items()}
        return report

    def _backward(self, _loss: Any) -> None:
        """Do what MMF does, but without computing gradients, and skip updates that overflow in fp16."""
        self.scaler.unscale_(self.optimizer)
        if self.should_clip_gradients:
            with self._session.replay.check_gradient_norm():
                clip_gradients(self.model, self.num_updates, self.tb_writer, self.config)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._run_scheduler()
        self.num_updates += 1
        self.profile("Backward time")
        self._session.micro_batch.on_update_end()

    def _logistics(self, report: Any) -> bool:
        should_break = bool(super()._logistics(report))
        self._session.on_update_end()
        return should_break or self.num_updates >= self.max_updates

    def _summarize_report(self, meter: Any, should_print: Any = True, extra: Any = None) -> None:
        super()._summarize_report(meter, should_print, extra)
        scalars = meter.get_scalar_dict()
        if any(key.startswith("val/") for key in scalars):
            self._session.on_validation_end(meter, final=self._after_training)
        elif should_print is True:
            self._session.on_log(scalars)

    def _calculate_time_left(self) -> str:
        # With max_epochs, max_updates is infinite, which MMF cannot convert to a time.
        return "" if math.isinf(self.max_updates) else str(super()._calculate_time_left())


#: Phases of training in addition to those of every version of MMF.
TIMED_METHODS: tuple[TimedMethod, ...] = (
    (SampleList, "to", "transfer"),
    (BaseTrainer, "_forward_pass", "forward"),
    (MmfwTrainer, "_backward", "optimizer"),  # the gradients are already computed
    (BaseTrainer, "_logistics", "logging"),
)


def register(observer: Observer, trainers: list[Any]) -> None:
    """Make MMF use this trainer, which appends itself to ``trainers``."""
    base_trainer.Checkpoint = partial(checkpoints.Checkpoint, observer)
    registry.register_trainer("mmfw")(partial(MmfwTrainer, observer, trainers))
