"""Hooks for MMF 1.0.0rc12: a registered callback."""

from __future__ import annotations

import math
from functools import partial, partialmethod
from typing import Any

from mmf.common.registry import registry
from mmf.common.sample import SampleList, convert_batch_to_sample_list
from mmf.trainers.callbacks import checkpoint
from mmf.trainers.callbacks.base import Callback
from mmf.trainers.core.callback_hook import TrainerCallbackHookMixin
from mmf.trainers.core.training_loop import TrainerTrainingLoopMixin

from mmf_win.worker.hooks import batch_splitting, checkpoints, fast_mode, precision, ranks
from mmf_win.worker.hooks.observer import Observer
from mmf_win.worker.hooks.phase_timer import TimedMethod
from mmf_win.worker.hooks.session import TrainingSession, report_prediction_start

#: Phases of training in addition to those of every version of MMF.
TIMED_METHODS: tuple[TimedMethod, ...] = (
    (SampleList, "to", "transfer"),
    (TrainerTrainingLoopMixin, "_forward", "forward"),
    (TrainerTrainingLoopMixin, "_finish_update", "optimizer"),
    (TrainerCallbackHookMixin, "on_update_end", "logging"),
)


class MmfwCallback(Callback):  # type: ignore[misc]
    """Callback with hooks; it also saves and scores the last update, which MMF omits between intervals."""

    _session: TrainingSession

    def __init__(self, observer: Observer, trainers: list[Any], config: Any, trainer: Any, **_: Any) -> None:
        super().__init__(config, trainer)
        trainers.append(trainer)
        self._observer = observer
        self._precision, scaler = precision.configure_precision(self._observer, trainer)
        if self._observer.request.precision is not None:
            trainer.load_fp16_scaler = partial(setattr, trainer, "scaler", scaler)  # MMF would create its own
        if self._observer.request.fast:
            fast_mode.enable_channels_last(trainer.model, self._observer)
        self._checkpoint = trainer.checkpoint_callback.checkpoint

    def on_init_end(self, **_kwargs: Any) -> None:
        """Wrap the model for several ranks and limit the rows of evaluation passes."""
        ranks.wrap_ddp(self.trainer)
        batch_splitting.limit_eval_batch(self.trainer.model, self._observer.request.eval_batch)

    def on_train_start(self, **_kwargs: Any) -> None:
        """Report that training starts, wrap the training loop, and repeat an interrupted validation."""
        trainer, resume_state = self.trainer, self._checkpoint.resume_state
        self._session = TrainingSession(self._observer, trainer, self._checkpoint, self._precision)
        train, mmf_step = trainer.run_training_epoch, trainer.run_training_batch

        def run_training_batch(batch: Any, divisor: float) -> Any:
            """Run MMF's step for each part of the batch; it divides each loss by the divisor of the part."""

            def step(share: float, rows: Any) -> Any:
                return mmf_step(rows, divisor / share if share else math.inf).detach()

            return self._session.step_in_parts(convert_batch_to_sample_list(batch), step)

        def check_losses(report: Any) -> None:
            self._session.check_losses(report.losses, report.batch_size)

        def run_training_epoch() -> None:
            if not resume_state.validate_if_due(self._validate):
                train()
                self._session.require_update()

        trainer.evaluation_loop = resume_state.track_validation()(trainer.evaluation_loop)
        trainer.run_training_epoch, trainer.run_training_batch = run_training_epoch, run_training_batch
        trainer._finish_update = self._session.replay.check_gradient_norm()(trainer._finish_update)
        trainer._check_nan_losses = check_losses  # MMF's check does not name the update
        trainer.batches_left = resume_state.batches_left

    def on_prediction_start(self, **_kwargs: Any) -> None:
        """Report that prediction starts."""
        report_prediction_start(self._observer, self.trainer, self._precision)

    def on_update_start(self, **_kwargs: Any) -> None:
        """Start measuring the update."""
        self._session.micro_batch.on_update_start()

    def on_update_end(self, **kwargs: Any) -> None:
        """Report the figures that MMF collected, and stop if requested."""
        self._session.micro_batch.on_update_end()
        if kwargs["should_log"]:
            self._session.on_log(kwargs["meter"].get_scalar_dict())
        self._session.on_update_end()

    def on_validation_end(self, **kwargs: Any) -> None:
        """Report the validation; after the last update, also let MMF check for a new best result."""
        if self._checkpoint.resume_state.validated_update % self.training_config.evaluation_interval:
            self.trainer.early_stop_callback.on_validation_end(meter=kwargs["meter"])
        self._session.on_validation_end(kwargs["meter"])

    def on_train_end(self, **_kwargs: Any) -> None:
        """Report the end of training; MMF has restored the best checkpoint."""
        self._session.on_train_end()

    def on_test_end(self, **kwargs: Any) -> None:
        """Report the validation after training."""
        if kwargs["report"].dataset_type == "val":
            self._session.on_validation_end(kwargs["meter"], final=True)

    def _validate(self) -> bool:
        """Validate as MMF's training loop does, and return whether training stops early."""
        self.trainer.on_validation_start()
        report, meter = self.trainer.evaluation_loop("val")
        stop = self.trainer.early_stop_callback.on_validation_end(report=report, meter=meter)
        self.trainer.on_validation_end(report=report, meter=meter)
        return bool(stop)


def register(observer: Observer, trainers: list[Any]) -> None:
    """Make MMF use this callback, which appends MMF's trainer to ``trainers``."""
    checkpoint.Checkpoint = partial(checkpoints.Checkpoint, observer)

    @registry.register_callback("mmfw")
    class _RegisteredCallback(MmfwCallback):
        __init__ = partialmethod(MmfwCallback.__init__, observer, trainers)
