"""The hooks for MMF 1.0.0rc12: a registered callback."""

from __future__ import annotations

from typing import Any

from mmf.common.registry import registry
from mmf.trainers.callbacks.base import Callback

from mmf_win.bridge.hooks.observer import Observer
from mmf_win.bridge.hooks.weights import guard
from mmf_win.bridge.outcome import StopRequested

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
        self._observe_saves()

    def on_train_start(self, **kwargs: Any) -> None:
        """Say that training begins."""
        _observer.training_started(self.trainer, self.training_config.max_updates)

    def on_update_end(self, **kwargs: Any) -> None:
        """Report the figures that MMF collected, and leave when the parent asked for it."""
        if kwargs["should_log"]:
            _observer.trained(self.trainer, self.trainer.max_updates, kwargs["meter"].get_scalar_dict())
        if _observer.stop_requested:
            self._save()
            raise StopRequested(f"stopped at update {self.trainer.num_updates}")

    def on_validation_end(self, **kwargs: Any) -> None:
        """Report the validation; after the last update it also decides whether this was the best."""
        meter = kwargs["meter"]
        if self.trainer.num_updates % self.training_config.evaluation_interval:
            self.trainer.early_stop_callback.on_validation_end(meter=meter)
        _observer.validated(self.trainer, meter)

    def on_test_end(self, **kwargs: Any) -> None:
        """Report the validation that follows training."""
        if kwargs["report"].dataset_type == "val":
            _observer.validated(self.trainer, kwargs["meter"], final=True)

    def _save(self) -> None:
        self._checkpoint.save(self.trainer.num_updates, self.trainer.current_iteration, update_best=False)

    def _observe_saves(self) -> None:
        save = self._checkpoint.save

        def observed(update: int, iteration: int | None = None, update_best: bool = False) -> None:
            save(update, iteration, update_best=update_best)
            _observer.saved(update, update_best)

        self._checkpoint.save = observed
