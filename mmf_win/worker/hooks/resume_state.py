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
from mmf_win.worker.hooks.ranks import broadcast_from_first, get_world_size, rank_rows, seed_rank
from mmf_win.worker.prediction_progress import get_single_loader

#: Tensors and plain values only, which ``torch.load`` reads with ``weights_only``.
SavedState = dict[str, Any]


class ResumeState:
    """The random generators, the position among the training rows, the last validation, and the scaler.

    Attributes:
        validated: the update that was validated last. The trainer's own is that of the best checkpoint
            once early stopping has put it back.
        batches_left: says how many batches the next pass over the rows has.
        share: of the batch that is trained with; see :meth:`ResumableSampler.batch_share`.
    """

    def __init__(self, trainer: Any, phase_timer: PhaseTimer) -> None:
        self._trainer, self._phase_timer = trainer, phase_timer
        self._row_sampler = ResumableSampler(get_single_loader(trainer.train_loader), trainer, self.seed_rank)
        self.batches_left, self.batch_share = self._row_sampler.batches_left, self._row_sampler.batch_share
        self._seed = int(broadcast_from_first(torch.tensor(torch.initial_seed() % 2**32)))
        self.validated_update: int | None = None
        self._rng_before_validation: SavedState | None = None

    def state_dict(self) -> SavedState | None:
        """What a checkpoint stores; None before the first row."""
        position = self._row_sampler.state_dict()
        return position and {
            "position": position,
            "random": self._rng_before_validation or get_rng_state(),
            "validated": self.validated_update,
            "scaler": self._trainer.scaler.state_dict(),
            "seed": self._seed,
        }

    def load_state_dict(self, state: SavedState) -> bool:
        """Resume; False where the number of rows has changed: then their order is drawn again."""
        self._row_sampler.rng_state = state["random"]
        self._seed = state.get("seed", self._seed)
        self.validated_update = state["validated"]
        if scaler := state["scaler"]:  # none is in a checkpoint of another precision
            self._trainer.scaler.load_state_dict(scaler)
        return self._row_sampler.load_state_dict(state["position"])

    def seed_rank(self) -> None:
        """Let the ranks draw different numbers; it is called wherever training may resume."""
        seed_rank(self._seed, self._trainer.num_updates)

    @contextmanager
    def track_validation(self) -> Iterator[None]:
        """Around each validation: one that was interrupted counts as not done, and is repeated."""
        self._rng_before_validation = get_rng_state()
        try:
            with self._phase_timer.time_phase("validation"):
                yield
            self.validated_update = self._trainer.num_updates
        finally:
            self._rng_before_validation = None
            self.seed_rank()

    def validate_if_due(self, validate: Callable[[], bool]) -> bool:
        """Repeat a validation that was interrupted, before training resumes; True when that ends it."""
        update = self._trainer.num_updates
        due = update % self._trainer.config.training.evaluation_interval == 0
        if self._row_sampler.rng_state is None or not due or self.validated_update == update:
            return False
        set_rng_state(self._row_sampler.rng_state)
        ends = validate()
        self._row_sampler.rng_state = get_rng_state()
        return ends


class ResumableSampler(Sampler[int]):
    """In the place of a DataLoader's sampler, it knows how far training is in its pass over the rows.

    A sampler draws the order of a pass when it begins, from torch's generator. So that generator's state at
    that moment and the number of rows since then are the position. With ``random``, the state of the
    generators, the first row is loaded after resuming.

    Several ranks have the order of the first, and each takes its part of every batch. One that has no row of
    the last batch takes another's, which then counts nothing.
    """

    def __init__(self, loader: Any, trainer: Any, prepare: Callable[[], None] = lambda: None) -> None:
        self._loader, self._trainer, self._prepare = loader, trainer, prepare
        self._rank_batch_size: int = loader.batch_size
        self._batch_size: int = self._rank_batch_size * get_world_size()
        self._sampler = loader.batch_sampler.sampler
        loader.batch_sampler.sampler = self
        self._pass_start: SavedState | None = None
        self._iteration_at_start = 0
        self._resume_position: SavedState | None = None
        self.rng_state: SavedState | None = None

    def __len__(self) -> int:
        whole, rest = divmod(len(self._sampler), self._batch_size)
        return int(whole * self._rank_batch_size) + (max(1, len(rank_rows(rest))) if rest else 0)

    def __iter__(self) -> Iterator[int]:
        position, self._resume_position = self._resume_position, None
        torch.set_rng_state(
            broadcast_from_first(position["drawn_from"].cpu() if position else torch.get_rng_state())
        )
        self._pass_start = {
            "epoch": self._trainer.current_epoch,
            "drawn_from": torch.get_rng_state(),
            "rows": position["rows"] if position else 0,
            "of": len(self._sampler),
        }
        self._iteration_at_start = self._trainer.current_iteration
        rows = islice([*self._sampler], self._pass_start["rows"], None)
        if position is not None and self.rng_state is not None:
            set_rng_state(self.rng_state)
        self._prepare()
        while batch := list(islice(rows, self._batch_size)):
            yield from [batch[n] for n in rank_rows(len(batch))] or batch[:1]

    def state_dict(self) -> SavedState | None:
        """Where training is; None before the first row."""
        if self._resume_position is not None or self._pass_start is None:
            return self._resume_position
        return {**self._pass_start, "rows": min(self._rows_begun(), self._pass_start["of"])}

    def batch_share(self) -> tuple[float, int]:
        """What the loss of this rank's rows counts in the mean over all ranks, and the rows of all.

        Training has begun with a batch, whose losses become those of all its rows.
        """
        assert self._pass_start is not None
        rows = min(self._batch_size, self._pass_start["of"] - self._rows_begun() + self._batch_size)
        return len(rank_rows(rows)) * get_world_size() / rows, rows

    def _rows_begun(self) -> int:
        """Return how many rows training has begun with; the last batch of a pass counts as a full one."""
        assert self._pass_start is not None
        batches = self._trainer.current_iteration - self._iteration_at_start
        return int(self._pass_start["rows"] + batches * self._batch_size)

    def load_state_dict(self, position: SavedState) -> bool:
        """Start the next pass at ``position``; False where that is one among another number of rows."""
        if position["of"] != len(self._sampler):
            return False
        self._resume_position = position
        self._trainer.current_epoch = position["epoch"] - 1  # MMF adds one as it begins
        return True

    def batches_left(self) -> int:
        """Return the number of batches of the next pass that training has not had."""
        if self._resume_position is None:
            return len(self._loader)
        rows_left: int = self._resume_position["of"] - self._resume_position["rows"]
        return math.ceil(rows_left / self._batch_size)
