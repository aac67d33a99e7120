"""Turns what a trainer does into events and TensorBoard's curves, and honours stop requests."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch

from mmf_win.errors import UsageError
from mmf_win.protocol import Attempt, read_events
from mmf_win.protocol.data_wait import Waiting
from mmf_win.worker.hooks.first_loss import is_fresh, oddity
from mmf_win.worker.hooks.phase_timer import PhaseTimer, Profiler, WaitWatch, decodes_once
from mmf_win.worker.hooks.ranks import any_rank, rank, ranks, share_weights
from mmf_win.worker.outcome import StopRequested
from mmf_win.worker.stopping import Stop

if TYPE_CHECKING:
    from mmf_win.worker.hooks.micro_batch import MicroBatch

_HEARTBEAT = 1.0
_FEW = 4  # rows whose mean loss chance alone makes odd
_CURVES = ("loss", "lr", "updates_per_s", "max_mem_mib")


class Observer:
    """The worker's side of the protocol.

    Attributes:
        current: the one of this process, which the objects that MMF makes tell what they do.
        clock: knows where the time of training goes.
        weights: the file whose weights are loaded, or its name in a zoo.
        copied: the tensors of the model that files have set before training.
        trainer: MMF's, when it has begun to train or to predict.
    """

    current: ClassVar[Observer]

    def __init__(self, request: Attempt, stop: Stop) -> None:
        self.request = request
        self._curves = Curves(request.run.path)
        self._stop = stop
        self.clock = PhaseTimer()
        self.weights: Any = None
        self.copied: set[str] = set()
        self._measured: WaitWatch | Profiler | None = None
        self.trainer: Any = None
        self._fresh = False
        self._checkpoint: Any = None
        self._resume_state: Any = None
        self._since = time.monotonic()
        self._first_update = self._last_update = 0
        self._next_heartbeat = time.monotonic()

    @property
    def is_main(self) -> bool:
        """Whether this is the one rank that writes."""
        return rank() == 0

    @property
    def is_stopping(self) -> bool:
        """A stop request for this process alone.

        Always false for one of several ranks: if one left alone, the others would wait for its gradients.
        """
        return ranks() == 1 and self._stop.is_requested()

    def event(self, kind: str, **values: Any) -> None:
        """Write an event, once for all ranks."""
        if self.is_main:
            self.request.write_event(kind, **values)
            self._curves.write(kind, values)

    def training_started(self, trainer: Any, checkpoint: Any, micro: MicroBatch, precision: str) -> None:
        """Training is about to start or resume; MMF's ``checkpoint`` is saved before it is left."""
        self.trainer, self._checkpoint = trainer, None if self.request.is_trial else checkpoint
        self._resume_state = checkpoint.resume_state
        training = trainer.config.training
        self._first_update = self._last_update = trainer.num_updates
        self._since = time.monotonic()
        self.event(
            "train_started",
            update=trainer.num_updates,
            max_updates=self.request.profile or self.request.total or _finite(training.max_updates),
            device=str(trainer.device),
            precision=precision,
            batch=micro.batch,
            micro_batch=micro.rows,
            searching=micro.finder is not None,
            workers=training.num_workers,
            processes=ranks(),
            seed=training.seed,
            parameters=sum(p.numel() for p in trainer.model.parameters()),
            known_fit=micro.is_known_fit,
            fit=micro.fit,
            data=self.request.data.get("train"),
        )
        if self.request.check:
            from mmf_win.worker.tasks import check

            check.run(self, trainer, micro.limit)
        self._fresh = trainer.num_updates == 0 and is_fresh(trainer.model, self.copied)
        if self.request.find_micro_batch and micro.finder is None:
            self.event("micro_batch", rows=micro.rows, found=True)
        if self.request.profile and self.is_main:
            self._measured = Profiler(self.request, trainer, self.clock)
        else:
            self._measured = WaitWatch(trainer, self.clock, ranks())

    def made_losses(self, losses: Mapping[str, torch.Tensor], rows: int) -> None:
        """The losses of so many rows are made; of the first, say so where they are odd."""
        fresh, self._fresh = self._fresh, False
        if fresh and rows >= _FEW and (text := oddity(losses)):
            self.event("note", text=text)

    def require_update(self) -> None:
        """Refuse, by a UsageError, to call a training done in which there was no update."""
        # A checkpoint that mmfw named was checked before; there may have been a validation to repeat.
        if self.trainer.num_updates == self._first_update and self.request.checkpoint is None:
            raise UsageError(
                f"no update was made: training began and ended at update {self._first_update}",
                hint="raise training.max_updates or training.max_epochs, or begin with an earlier checkpoint",
            )

    def training_ended(self) -> None:
        """The weights are the best checkpoint's from now on, and must not be saved as the current ones."""
        self._checkpoint = None
        share_weights(self.trainer)
        if isinstance(self._measured, Profiler):
            self.event("profiled", **self._measured.ended())
        self._stop.release()

    def prediction_started(self, trainer: Any, batch: int, precision: str) -> None:
        """The model is loaded, and predicting starts, with ``batch`` rows in one pass unless set lower."""
        self.trainer = trainer
        device, workers = str(trainer.device), trainer.config.training.num_workers
        self.event("predict_started", device=device, precision=precision, batch=batch, workers=workers)

    def trained(self, scalars: dict[str, Any]) -> None:
        """An update whose figures MMF collected is done."""
        now, trainer = time.monotonic(), self.trainer
        done = trainer.num_updates - self._last_update
        cuda = torch.cuda.is_available()
        self.event(
            "train",
            update=trainer.num_updates,
            max_updates=self.request.profile or self.request.total or _finite(trainer.max_updates),
            epoch=trainer.current_epoch,
            loss=_number(scalars.get("train/total_loss")),
            lr=_number(trainer.optimizer.param_groups[0]["lr"]),
            updates_per_s=round(done / max(now - self._since, 1e-9), 4),
            max_mem_mib=torch.cuda.max_memory_allocated() // 2**20 if cuda else None,
        )
        self._last_update, self._since = trainer.num_updates, now

    def validated(self, update: int | None, meter: Any, *, final: bool = False) -> None:
        """The validation set has been scored; ``final`` after training, with the best checkpoint."""
        metrics = {key.removeprefix("val/"): _number(value.global_avg) for key, value in meter.meters.items()}
        data = self.request.data.get("val")
        self.event("val", update=update, metrics=metrics, final=final, data=data)

    def saving(self, update: int) -> None:
        """A checkpoint is about to be written, which a stop request does not interrupt."""
        self._stop.defer_stop()
        self.event("saving", update=update)

    def require_batches(self) -> None:
        """Save and leave if this process was asked to stop: the next batch is late, or will never come."""
        if self.is_stopping:
            self._leave()

    def heartbeat(self) -> None:
        """Work without an event of its own is done, such as a batch of the validation set."""
        if any_rank(self._stop.asked):
            self._leave()
        if time.monotonic() >= self._next_heartbeat:
            self._next_heartbeat = time.monotonic() + _HEARTBEAT
            self.event("alive")

    def updated(self) -> None:
        """An update is done: from now on there is something to save.

        Raises StopRequested where this process was asked to stop; the run is saved.
        """
        self._stop.defer_stop()
        self._resume_state.own_randomness()
        if self._measured is not None and (waiting := self._measured.updated()):
            self._note(waiting)
        if any_rank(self._stop.asked):  # one that left alone would leave the others waiting for gradients
            self._leave()

    def _note(self, waiting: Waiting) -> None:
        """Say that the model waits for data, if more workers may help and fitted into memory."""
        workers = waiting.helpful_workers() if waiting.is_much else None
        if workers is None:
            return
        events = read_events(self.request.events)
        if any("workers" in (event.get("next") or {}) for event in events):
            return
        first = self.trainer.current_epoch == 1 and decodes_once(self.request, self.trainer)
        later = ", and less once all images are decoded" if first else ""
        self.event("note", text=f"{waiting}{later}: training.num_workers={workers} may help")

    def _leave(self) -> NoReturn:
        self._stop.defer_stop()
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is None:
            raise StopRequested("stopped")
        update = self.trainer.num_updates
        checkpoint.save(update, self.trainer.current_iteration, update_best=False)
        if ranks() > 1:  # one that left before the first has saved would end them all
            torch.distributed.barrier()
        raise StopRequested(f"stopped at update {update}, which is saved")


class Curves:
    """The numbers in the events of training, for TensorBoard; nothing where tensorboard is not installed.

    MMF's own ``training.tensorboard`` writes the loss alone, into folders whose names Windows refuses.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Take an event in; its update is TensorBoard's step."""
        if kind == "train_started":
            with suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter

                # What an earlier attempt wrote after this update is no longer shown.
                self._writer = SummaryWriter(str(self._folder), purge_step=values["update"] + 1)
        if self._writer is None:
            return
        scalars: dict[str, float | None] = {}
        if kind == "train":
            scalars = {key: values.get(key) for key in _CURVES}
        elif kind == "val" and not values.get("final"):
            scalars = {key.removeprefix("hateful_memes/"): value for key, value in values["metrics"].items()}
        for key, value in scalars.items():
            if value is not None:
                self._writer.add_scalar(f"{kind}/{key}", value, values["update"])
        self._writer.flush()  # a worker may be killed at any time


def _number(value: Any) -> float | None:
    """A finite number; JSON knows no others."""
    return None if value is None or not math.isfinite(value) else float(value)


def _finite(updates: float | None) -> int | None:
    return None if updates is None or math.isinf(updates) else int(updates)
