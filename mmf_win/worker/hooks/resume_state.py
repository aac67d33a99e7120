"""State beyond MMF's checkpoint that a run needs to resume as if it had not been interrupted."""

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

#: Tensors and plain values only, which ``torch.load`` can read with ``weights_only``.
SavedState = dict[str, Any]


class ResumeState:
    """Random generators, position in the training rows, last validation, and gradient scaler.

    Attributes:
        validated_update: The last validated update. The trainer's number of updates differs once early
            stopping has restored the best checkpoint.
        batches_left: Returns the number of batches of the next epoch.
        batch_share: Returns the share of the current batch; see :meth:`ResumableSampler.batch_share`.
    """

    def __init__(self, trainer: Any, phase_timer: PhaseTimer) -> None:
        self._trainer, self._phase_timer = trainer, phase_timer
        self._row_sampler = ResumableSampler(get_single_loader(trainer.train_loader), trainer, self.seed_rank)
        self.batches_left, self.batch_share = self._row_sampler.batches_left, self._row_sampler.batch_share
        self._seed = int(broadcast_from_first(torch.tensor(torch.initial_seed() % 2**32)))
        self.validated_update: int | None = None
        self._rng_before_validation: SavedState | None = None

    def state_dict(self) -> SavedState | None:
        """Return the state to store in a checkpoint; ``None`` before the first row."""
        position = self._row_sampler.state_dict()
        return position and {
            "position": position,
            "random": self._rng_before_validation or get_rng_state(),
            "validated": self.validated_update,
            "scaler": self._trainer.scaler.state_dict(),
            "seed": self._seed,
        }

    def load_state_dict(self, state: SavedState) -> bool:
        """Restore the state from a checkpoint.

        Returns:
            ``False`` if the number of rows has changed; the next epoch then uses a new row order.
        """
        self._row_sampler.rng_state = state["random"]
        self._seed = state.get("seed", self._seed)
        self.validated_update = state["validated"]
        if scaler := state["scaler"]:  # empty in checkpoints of another precision
            self._trainer.scaler.load_state_dict(scaler)
        return self._row_sampler.load_state_dict(state["position"])

    def seed_rank(self) -> None:
        """Seed the ranks differently; called at every point from which training may resume."""
        seed_rank(self._seed, self._trainer.num_updates)

    @contextmanager
    def track_validation(self) -> Iterator[None]:
        """Track a validation in the block; an interrupted one is repeated when the run resumes."""
        self._rng_before_validation = get_rng_state()
        try:
            with self._phase_timer.time_phase("validation"):
                yield
            self.validated_update = self._trainer.num_updates
        finally:
            self._rng_before_validation = None
            self.seed_rank()

    def validate_if_due(self, validate: Callable[[], bool]) -> bool:
        """Repeat an interrupted validation before training resumes; return whether it ends training."""
        update = self._trainer.num_updates
        is_due = update % self._trainer.config.training.evaluation_interval == 0
        if self._row_sampler.rng_state is None or not is_due or self.validated_update == update:
            return False
        set_rng_state(self._row_sampler.rng_state)
        should_stop = validate()
        self._row_sampler.rng_state = get_rng_state()
        return should_stop


class ResumableSampler(Sampler[int]):
    """Sampler of a DataLoader that tracks the position of training in the rows.

    A sampler draws the row order of an epoch from torch's generator when the epoch starts. The position
    therefore consists of the state of the generator at that time and of the number of rows since then. After
    resuming, the first row is loaded with the generators in ``rng_state``.

    All ranks use the row order of rank 0, and each takes its part of every batch. A rank without a row in the
    last batch repeats another rank's row, which then has the weight 0.

    Attributes:
        rng_state: State of all generators to restore before the first row after resuming.
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
        full_batches, extra_rows = divmod(len(self._sampler), self._batch_size)
        return int(full_batches * self._rank_batch_size) + (max(1, len(rank_rows(extra_rows))) if extra_rows else 0)

    def __iter__(self) -> Iterator[int]:
        position, self._resume_position = self._resume_position, None
        torch.set_rng_state(broadcast_from_first(position["drawn_from"].cpu() if position else torch.get_rng_state()))
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
        """Return the position; ``None`` before the first row."""
        if self._resume_position is not None or self._pass_start is None:
            return self._resume_position
        return {**self._pass_start, "rows": min(self._rows_begun(), self._pass_start["of"])}

    def batch_share(self) -> tuple[float, int]:
        """Return the weight of the current batch of this rank and the number of rows of all ranks.

        The losses of a batch are means over the rows of a rank. Multiplied by the weight and averaged over
        all ranks, they become the mean over all rows.

        Returns:
            The weight, 0 if the rows of this rank are repeated, and the rows of all ranks.
        """
        assert self._pass_start is not None
        rows = min(self._batch_size, self._pass_start["of"] - self._rows_begun() + self._batch_size)
        return len(rank_rows(rows)) * get_world_size() / rows, rows

    def _rows_begun(self) -> int:
        """Return the number of rows used so far; the last batch of an epoch counts as a full one."""
        assert self._pass_start is not None
        batches = self._trainer.current_iteration - self._iteration_at_start
        return int(self._pass_start["rows"] + batches * self._batch_size)

    def load_state_dict(self, position: SavedState) -> bool:
        """Start the next epoch at ``position``; return ``False`` if the number of rows has changed."""
        if position["of"] != len(self._sampler):
            return False
        self._resume_position = position
        self._trainer.current_epoch = position["epoch"] - 1  # MMF adds one at the start
        return True

    def batches_left(self) -> int:
        """Return the number of batches that remain in the next epoch."""
        if self._resume_position is None:
            return len(self._loader)
        rows_left: int = self._resume_position["of"] - self._resume_position["rows"]
        return math.ceil(rows_left / self._batch_size)
