"""The hooks for MMF 1.0.0rc12: a registered callback."""

from __future__ import annotations

from typing import Any

from mmf.common.registry import registry
from mmf.trainers.callbacks.base import Callback

from mmf_win.bridge.hooks.observer import Observer
from mmf_win.bridge.hooks.weights import guard

_observer: Observer


def register(observer: Observer) -> None:
    """Tell ``observer`` what the callback named ``mmfw`` sees."""
    global _observer
    _observer = observer


@registry.register_callback("mmfw")
class Watch(Callback):  # type: ignore[misc]
    """Observes training; it also saves and scores the last update, which MMF forgets between intervals."""

    def __init__(self, config: Any, trainer: Any, **_: Any) -> None:
        super().__init__(config, trainer)
        guard(trainer.model)
        self._checkpoint = trainer.checkpoint_callback.checkpoint
        _observer.observe_saves(self._checkpoint)

    def on_train_start(self, **kwargs: Any) -> None:
        """Say that training begins."""
        _observer.training_started(self.trainer, self.training_config.max_updates, self._save)

    def on_update_end(self, **kwargs: Any) -> None:
        """Report the figures that MMF collected, and leave when the parent asked for it."""
        if kwargs["should_log"]:
            _observer.trained(self.trainer, self.trainer.max_updates, kwargs["meter"].get_scalar_dict())
        _observer.updated()

    def on_validation_end(self, **kwargs: Any) -> None:
        """Report the validation; after the last update it also decides whether this was the best."""
        meter = kwargs["meter"]
        if self.trainer.num_updates % self.training_config.evaluation_interval:
            self.trainer.early_stop_callback.on_validation_end(meter=meter)
        _observer.validated(self.trainer, meter)

    def on_train_end(self, **kwargs: Any) -> None:
        """MMF has put the best checkpoint back."""
        _observer.training_ended()

    def on_test_end(self, **kwargs: Any) -> None:
        """Report the validation that follows training."""
        if kwargs["report"].dataset_type == "val":
            _observer.validated(self.trainer, kwargs["meter"], final=True)

    def _save(self) -> None:
        self._checkpoint.save(self.trainer.num_updates, self.trainer.current_iteration, update_best=False)
