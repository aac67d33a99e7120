"""The order of the training rows, which a run that goes on continues where it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, Sampler

from mmf_win.worker.hooks.random_state import State, set_random_state


class RowOrder(Sampler[int]):
    """Stands before a sampler and knows where in its pass over the rows training is.

    A sampler draws the order of a pass when it begins, from torch's generator. So that generator's state at
    that moment and the number of rows since then are the position.

    Args:
        sampler: draws the order.
        batch_size: rows a batch.
        trainer: counts ``current_iteration``, the batches of all passes, and ``current_epoch``.
    """

    def __init__(self, sampler: Any, batch_size: int, trainer: Any) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._trainer = trainer
        self._drawn_from: torch.Tensor | None = None
        self._rows_before = 0
        self._batches_before = 0
        self._epoch = 0
        self._next: tuple[State, Callable[[], State | None]] | None = None

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        position, self._next = self._next, None
        if position is not None:
            torch.set_rng_state(position[0]["drawn_from"].cpu())
        self._drawn_from = torch.get_rng_state()
        self._rows_before = position[0]["rows"] if position else 0
        self._batches_before = self._trainer.current_iteration
        self._epoch = self._trainer.current_epoch
        rows = iter(self._sampler)
        for _ in islice(rows, self._rows_before):
            pass
        if position is not None and (random := position[1]()) is not None:
            set_random_state(random)
        yield from rows

    def position(self) -> State | None:
        """Where training is; None before the first row."""
        if self._next is not None:
            return self._next[0]
        if self._drawn_from is None:
            return None
        batches = self._trainer.current_iteration - self._batches_before
        return {
            "epoch": self._epoch,
            "drawn_from": self._drawn_from,
            "rows": min(self._rows_before + batches * self._batch_size, len(self)),
            "of": len(self),
        }

    def go_on(self, position: State, random: Callable[[], State | None]) -> bool:
        """Begin the next pass at ``position``.

        Args:
            position: of :meth:`position`.
            random: tells the state of the generators with which the first row is loaded.

        Returns:
            False where it is a position among another number of rows, so that nothing can go on.
        """
        if position["of"] != len(self):
            return False
        self._next = position, random
        self._trainer.current_epoch = position["epoch"] - 1  # MMF adds one as it begins
        return True

    def batches_skipped(self) -> int:
        """How many batches the next pass leaves out, as training has had them."""
        return math.ceil(self._next[0]["rows"] / self._batch_size) if self._next else 0


def follow(loader: Any, trainer: Any) -> RowOrder | None:
    """Put a :class:`RowOrder` into a DataLoader; None where it has no sampler of single rows."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(batch_sampler, BatchSampler):
        return None
    order = RowOrder(batch_sampler.sampler, batch_sampler.batch_size, trainer)
    batch_sampler.sampler = order
    return order
