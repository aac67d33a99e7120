"""What a run needs beyond MMF's checkpoint in order to go on as if it had not been interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mmf_win.worker.hooks import row_order
from mmf_win.worker.hooks.observer import distributed
from mmf_win.worker.hooks.random_state import State, random_state, set_random_state


class Continuation:
    """The random generators, the position among the training rows, and the last validation of a training.

    Args:
        trainer: MMF's.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._loader = _loader(trainer)
        self._order = row_order.follow(self._loader, trainer)
        self._validated: int | None = None
        self._before_validation: State | None = None
        self._random: State | None = None

    def state(self) -> State | None:
        """What a checkpoint is to hold; None before the first row."""
        position = self._order.position() if self._order else None
        if position is None:
            return None
        return {
            "position": position,
            "random": self._before_validation or random_state(),
            "validated": self._validated,
        }

    def go_on(self, state: State) -> bool:
        """Go on from ``state``; False where the rows are others now, so that their order is drawn anew.

        Each of several ranks has random generators of its own, of which a checkpoint holds only those of the
        first: there, all keep what they have.
        """
        self._random = random_state() if distributed() else state["random"]
        self._validated = state["validated"]
        return self._order is not None and self._order.go_on(state["position"], lambda: self._random)

    def batches_left(self) -> int:
        """How many batches the pass over the rows has that begins next."""
        return len(self._loader) - (self._order.batches_skipped() if self._order else 0)

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Around each validation: one that is left in its middle has not been, and is done again."""
        self._before_validation = random_state()
        try:
            yield
            self._validated = self._trainer.num_updates
        finally:
            self._before_validation = None

    def catch_up(self, validate: Callable[[], bool]) -> bool:
        """Do the validation that was due when the run was interrupted, before training goes on.

        Args:
            validate: does it; True when it ends training.

        Returns:
            Whether training has ended.
        """
        update = self._trainer.num_updates
        due = update % self._trainer.config.training.evaluation_interval == 0
        if self._random is None or not due or self._validated == update:
            return False
        set_random_state(self._random)
        ends = validate()
        self._random = random_state()
        return ends


def _loader(trainer: Any) -> Any:
    """The DataLoader of the training rows; there is one dataset."""
    loaders = trainer.train_loader.loaders
    return next(iter(loaders.values() if isinstance(loaders, dict) else loaders))
