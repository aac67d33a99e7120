"""The hooks for MMF 1.0.0rc10, which knows no callbacks: a registered trainer."""

from __future__ import annotations

import math
from typing import Any

from mmf.common.registry import registry
from mmf.trainers.base_trainer import BaseTrainer

from mmf_win.bridge.hooks.observer import Observer
from mmf_win.bridge.hooks.weights import guard

_observer: Observer


def register(observer: Observer) -> None:
    """Tell ``observer`` what the trainer named ``mmfw`` does."""
    global _observer
    _observer = observer


@registry.register_trainer("mmfw")
class Trainer(BaseTrainer):  # type: ignore[misc]
    """MMF's trainer, observed; it also ends exactly at ``max_updates``, where MMF makes one more."""

    _after_training = False

    def load_extras(self) -> None:
        """Guard the model before MMF loads a checkpoint into it."""
        guard(self.model)
        super().load_extras()
        _observer.observe_saves(self.checkpoint)

    def train(self) -> None:
        """Train, having said so."""
        if "train" in self.run_type:
            _observer.training_started(self, self.max_updates, self._save)
        super().train()

    def inference(self) -> None:
        """Score the validation set with the best checkpoint."""
        self._after_training = True
        _observer.training_ended()
        super().inference()

    def _forward_pass(self, batch: Any) -> Any:
        if not self.model.training:
            _observer.heartbeat()
        return super()._forward_pass(batch)

    def _logistics(self, report: Any) -> bool:
        should_break = bool(super()._logistics(report))
        _observer.updated()
        return should_break or self.num_updates >= self.max_updates

    def _summarize_report(self, meter: Any, should_print: Any = True, extra: Any = None) -> None:
        super()._summarize_report(meter, should_print, extra)
        scalars = meter.get_scalar_dict()
        if any(key.startswith("val/") for key in scalars):
            _observer.validated(self, meter, final=self._after_training)
        elif should_print is True:
            _observer.trained(self, self.max_updates, scalars)

    def _calculate_time_left(self) -> str:
        # With max_epochs MMF counts to infinity, and cannot say when that will be.
        return "" if math.isinf(self.max_updates) else str(super()._calculate_time_left())

    def _save(self) -> None:
        self.checkpoint.save(self.num_updates, self.current_iteration, update_best=False)
