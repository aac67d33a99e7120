"""Turns what a trainer does into events, and looks for the stop file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from mmf_win.protocol import EventLog, Request


class Observer:
    """The worker's side of the protocol.

    Args:
        request: what the worker is to do; its run folder gets the events.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self._log = EventLog(Path(request.run_dir, "events.jsonl"))
        self._stop_file = Path(request.run_dir, "stop")
        self._since = time.monotonic()
        self._last_update: int | None = None

    def event(self, kind: str, **values: Any) -> None:
        """Write an event, once for all ranks."""
        if _rank() == 0:
            self._log.write(kind, **values)

    def training_started(self, trainer: Any, max_updates: float) -> None:
        """Training is about to begin, or to go on."""
        self._last_update = trainer.num_updates
        self._since = time.monotonic()
        self.event(
            "train_started",
            update=trainer.num_updates,
            max_updates=_finite(max_updates),
            device=str(trainer.device),
            batch=trainer.config.training.batch_size,
            seed=trainer.config.training.seed,
            parameters=sum(p.numel() for p in trainer.model.parameters()),
        )

    def trained(self, trainer: Any, max_updates: float, scalars: dict[str, Any]) -> None:
        """An update whose figures MMF collected has ended."""
        now = time.monotonic()
        done = trainer.num_updates - (self._last_update or 0)
        cuda = torch.cuda.is_available()
        self.event(
            "train",
            update=trainer.num_updates,
            max_updates=_finite(max_updates),
            epoch=trainer.current_epoch,
            loss=_number(scalars.get("train/total_loss")),
            lr=_number(trainer.optimizer.param_groups[0]["lr"]),
            updates_per_s=round(done / max(now - self._since, 1e-9), 4),
            max_mem_mib=torch.cuda.max_memory_allocated() // 2**20 if cuda else None,
        )
        self._last_update, self._since = trainer.num_updates, now

    def validated(self, trainer: Any, meter: Any, *, final: bool = False) -> None:
        """The whole validation set has been scored; ``final`` after training, with the best checkpoint."""
        metrics = {key.removeprefix("val/"): _number(value.global_avg) for key, value in meter.meters.items()}
        self.event("val", update=trainer.num_updates, metrics=metrics, final=final)

    def saved(self, update: int, is_best: bool) -> None:
        """A checkpoint has been written."""
        self.event("checkpoint", update=update, is_best=is_best)

    @property
    def stop_requested(self) -> bool:
        """Whether the parent asked for a stop."""
        return self._stop_file.exists()


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _finite(updates: float) -> int | None:
    return None if updates == float("inf") else int(updates)
