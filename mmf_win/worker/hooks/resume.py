"""What a run needs beyond MMF's checkpoint to resume as if it had not been interrupted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Sampler

from mmf_win.worker.hooks.phase_timer import PhaseTimer
from mmf_win.worker.hooks.random_state import get_rng_state, set_rng_state
from mmf_win.worker.hooks.ranks import of_first, own_randomness, part, ranks
from mmf_win.worker.predictions import only_loader

#: Tensors and plain values only, which ``torch.load`` reads with ``weights_only``.
Saved = dict[str, Any]


class ResumeState:
    """The random generators, the position among the training rows, the last validation, and the scaler.

    Attributes:
        validated: the update that was validated last. The trainer's own is that of the best checkpoint
            once early stopping has put it back.
        batches_left: says how many batches the next pass over the rows has.
        share: of the batch that is trained with; see :meth:`RowOrder.link_or_copy`.
    """

    def __init__(self, trainer: Any, clock: PhaseTimer) -> None:
        self._trainer, self._clock = trainer, clock
        self._order = RowOrder(only_loader(trainer.train_loader), trainer, self.own_randomness)
        self.batches_left, self.share = self._order.batches_left, self._order.share
        self._seed = int(of_first(torch.tensor(torch.initial_seed() % 2**32)))
        self.validated: int | None = None
        self._before_validation: Saved | None = None

    def state(self) -> Saved | None:
        """What a checkpoint stores; None before the first row."""
        position = self._order.position()
        return position and {
            "position": position,
            "random": self._before_validation or get_rng_state(),
            "validated": self.validated,
            "scaler": self._trainer.scaler.state_dict(),
            "seed": self._seed,
        }

    def resume(self, state: Saved) -> bool:
        """Resume; False where the number of rows has changed: then their order is drawn again."""
        self._order.random = state["random"]
        self._seed = state.get("seed", self._seed)
        self.validated = state["validated"]
        if scaler := state["scaler"]:  # none is in a checkpoint of another precision
            self._trainer.scaler.load_state_dict(scaler)
        return self._order.resume(state["position"])

    def own_randomness(self) -> None:
        """Let the ranks draw different numbers; it is called wherever training may resume."""
        own_randomness(self._seed, self._trainer.num_updates)

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Around each validation: one that was interrupted counts as not done, and is repeated."""
        self._before_validation = get_rng_state()
        try:
            with self._clock.during("validation"):
                yield
            self.validated = self._trainer.num_updates
        finally:
            self._before_validation = None
            self.own_randomness()

    def validate_if_due(self, validate: Callable[[], bool]) -> bool:
        """Repeat a validation that was interrupted, before training resumes; True when that ends it."""
        update = self._trainer.num_updates
        due = update % self._trainer.config.training.evaluation_interval == 0
        if self._order.random is None or not due or self.validated == update:
            return False
        set_rng_state(self._order.random)
        ends = validate()
        self._order.random = get_rng_state()
        return ends


class RowOrder(Sampler[int]):
    """In the place of a DataLoader's sampler, it knows how far training is in its pass over the rows.

    A sampler draws the order of a pass when it begins, from torch's generator. So that generator's state at
    that moment and the number of rows since then are the position. With ``random``, the state of the
    generators, the first row is loaded after resuming.

    Several ranks have the order of the first, and each takes its part of every batch. One that has no row of
    the last batch takes another's, which then counts nothing.
    """

    def __init__(self, loader: Any, trainer: Any, prepare: Callable[[], None] = lambda: None) -> None:
        self._loader, self._trainer, self._prepare = loader, trainer, prepare
        self._own_batch: int = loader.batch_size
        self._batch: int = self._own_batch * ranks()
        self._sampler = loader.batch_sampler.sampler
        loader.batch_sampler.sampler = self
        self._began: Saved | None = None
        self._batches_before = 0
        self._next: Saved | None = None
        self.random: Saved | None = None

    def __len__(self) -> int:
        whole, rest = divmod(len(self._sampler), self._batch)
        return int(whole * self._own_batch) + (max(1, len(part(rest))) if rest else 0)

    def __iter__(self) -> Iterator[int]:
        position, self._next = self._next, None
        torch.set_rng_state(of_first(position["drawn_from"].cpu() if position else torch.get_rng_state()))
        self._began = {
            "epoch": self._trainer.current_epoch,
            "drawn_from": torch.get_rng_state(),
            "rows": position["rows"] if position else 0,
            "of": len(self._sampler),
        }
        self._batches_before = self._trainer.current_iteration
        rows = islice([*self._sampler], self._began["rows"], None)
        if position is not None and self.random is not None:
            set_rng_state(self.random)
        self._prepare()
        while batch := list(islice(rows, self._batch)):
            yield from [batch[n] for n in part(len(batch))] or batch[:1]

    def position(self) -> Saved | None:
        """Where training is; None before the first row."""
        if self._next is not None or self._began is None:
            return self._next
        return {**self._began, "rows": min(self._rows_begun(), self._began["of"])}

    def share(self) -> tuple[float, int]:
        """What the loss of this rank's rows counts in the mean over all ranks, and the rows of all.

        Training has begun with a batch, whose losses become those of all its rows.
        """
        assert self._began is not None
        rows = min(self._batch, self._began["of"] - self._rows_begun() + self._batch)
        return len(part(rows)) * ranks() / rows, rows

    def _rows_begun(self) -> int:
        """Return how many rows training has begun with; the last batch of a pass counts as a full one."""
        assert self._began is not None
        batches = self._trainer.current_iteration - self._batches_before
        return int(self._began["rows"] + batches * self._batch)

    def resume(self, position: Saved) -> bool:
        """Start the next pass at ``position``; False where that is one among another number of rows."""
        if position["of"] != len(self._sampler):
            return False
        self._next = position
        self._trainer.current_epoch = position["epoch"] - 1  # MMF adds one as it begins
        return True

    def batches_left(self) -> int:
        """Return the number of batches of the next pass that training has not had."""
        if self._next is None:
            return len(self._loader)
        rows_left: int = self._next["of"] - self._next["rows"]
        return math.ceil(rows_left / self._batch)
