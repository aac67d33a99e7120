"""The hooks for MMF 1.0.0rc12: a registered callback."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from mmf.common.registry import registry
from mmf.common.sample import SampleList, convert_batch_to_sample_list
from mmf.trainers.callbacks import checkpoint
from mmf.trainers.callbacks.base import Callback
from mmf.trainers.core.callback_hook import TrainerCallbackHookMixin
from mmf.trainers.core.training_loop import TrainerTrainingLoopMixin
from mmf.utils.general import get_batch_size

from mmf_win.worker.hooks import checkpoints, fast, precision, ranks, splitting
from mmf_win.worker.hooks.micro_batch import MicroBatch
from mmf_win.worker.hooks.nonfinite import Replay
from mmf_win.worker.hooks.observer import Observer
from mmf_win.worker.hooks.phase_timer import Timed

checkpoint.Checkpoint = checkpoints.Checkpoint

TIMED: tuple[Timed, ...] = (
    (SampleList, "to", "transfer"),
    (TrainerTrainingLoopMixin, "_forward", "forward"),
    (TrainerTrainingLoopMixin, "_finish_update", "optimizer"),
    (TrainerCallbackHookMixin, "on_update_end", "logging"),
)
"""What belongs to which phase of training, beside what does in every MMF."""


@registry.register_callback("mmfw")
class Watch(Callback):  # type: ignore[misc]
    """Observes training; it also saves and scores the last update, which MMF forgets between intervals."""

    def __init__(self, config: Any, trainer: Any, **_: Any) -> None:
        super().__init__(config, trainer)
        self._observer = Observer.current
        self._precision, scaler = precision.choose(self._observer, trainer)
        if self._observer.request.precision is not None:
            trainer.load_fp16_scaler = partial(setattr, trainer, "scaler", scaler)  # MMF makes its own
        if self._observer.request.fast:
            fast.prepare(trainer.model, self._observer)
        self._checkpoint = trainer.checkpoint_callback.checkpoint
        self._micro: MicroBatch
        self._replay = Replay(trainer)
        self._mmf_step = trainer.run_training_batch
        trainer.run_training_batch = self._in_parts
        trainer._finish_update = self._replay.clipping()(trainer._finish_update)
        trainer._check_nan_losses = self._check  # MMF's own does not know the update

    def on_init_end(self, **kwargs: Any) -> None:
        """Spread the model over the ranks; it may have to score a batch in parts."""
        ranks.spread(self.trainer)
        splitting.evaluate_in_parts(self.trainer.model, self._observer.request.eval_batch)

    def on_train_start(self, **kwargs: Any) -> None:
        """Say that training begins, mark its validations, and let it begin with one that was interrupted."""
        self._micro = MicroBatch(self._observer, self.trainer, self._precision)
        self._observer.training_started(self.trainer, self._checkpoint, self._micro, self._precision)
        trainer, resume_state = self.trainer, self._checkpoint.resume_state
        train = trainer.run_training_epoch

        def run_training_epoch() -> None:
            if not resume_state.validate_if_due(self._validate):
                train()
                self._observer.require_update()

        trainer.evaluation_loop = resume_state.validating()(trainer.evaluation_loop)
        trainer.run_training_epoch = run_training_epoch
        trainer.batches_left = resume_state.batches_left

    def on_prediction_start(self, **kwargs: Any) -> None:
        """Say that prediction begins."""
        self._observer.prediction_started(self.trainer, get_batch_size(), self._precision)

    def on_update_start(self, **kwargs: Any) -> None:
        """Measure the update that begins."""
        self._micro.update_begins()

    def on_update_end(self, **kwargs: Any) -> None:
        """Report the figures that MMF collected, and leave when the parent asked for it."""
        self._micro.update_ends()
        if kwargs["should_log"]:
            self._observer.trained(kwargs["meter"].get_scalar_dict())
        self._observer.updated()

    def on_validation_end(self, **kwargs: Any) -> None:
        """Report the validation; after the last update it also decides whether this was the best."""
        meter, update = kwargs["meter"], self._checkpoint.resume_state.validated
        if update % self.training_config.evaluation_interval:
            self.trainer.early_stop_callback.on_validation_end(meter=meter)
        self._observer.validated(update, meter)

    def on_train_end(self, **kwargs: Any) -> None:
        """MMF has put the best checkpoint back."""
        self._observer.training_ended()

    def on_test_end(self, **kwargs: Any) -> None:
        """Report the validation that follows training."""
        if kwargs["report"].dataset_type == "val":
            self._observer.validated(self._checkpoint.resume_state.validated, kwargs["meter"], final=True)

    def _validate(self) -> bool:
        """A validation as MMF's training loop has it; True when it stops early."""
        self.trainer.on_validation_start()
        report, meter = self.trainer.evaluation_loop("val")
        stop = self.trainer.early_stop_callback.on_validation_end(report=report, meter=meter)
        self.trainer.on_validation_end(report=report, meter=meter)
        return bool(stop)

    def _check(self, report: Any) -> None:
        splitting.check_losses(report.losses, self.trainer.num_updates + 1)
        self._observer.made_losses(report.losses, report.batch_size)

    def _in_parts(self, batch: Any, divisor: float) -> Any:
        """MMF's own step for each part of the batch; it divides each loss by the part's divisor."""
        weight, rows_of_all = self._checkpoint.resume_state.share()
        parts = splitting.split(convert_batch_to_sample_list(batch), self._micro.limit, weight)

        def step(share: float, rows: Any) -> Any:
            return self._mmf_step(rows, divisor / share if share else math.inf).detach()

        required = self.trainer.metrics.required_params
        report = splitting.step_through(self.trainer.model, parts, self._replay.of_batch(step), required)
        report.batch_size = rows_of_all
        return report
