"""Reports what happens in a run as events and TensorBoard's curves, and honours stop requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.utils.data import dataloader
from torch.utils.data._utils import signal_handling

from mmf_win.compat.patch import wrap
from mmf_win.protocol import AttemptRequest
from mmf_win.protocol.metrics import series_values
from mmf_win.worker.hooks.phase_timer import PhaseTimer
from mmf_win.worker.hooks.ranks import any_rank, get_rank, get_world_size
from mmf_win.worker.outcome import StopRequested
from mmf_win.worker.stop_signal import StopSignal

_HEARTBEAT_SECONDS = 1.0


class Observer:
    """The worker's side of the protocol.

    Attributes:
        request: the attempt that this process is.
        clock: charges the time of training to its phases.
        weights: the file whose weights are loaded, or its name in a zoo.
        copied: the tensors of the model that files have set before training.
        has_begun: whether training or prediction has begun.
    """

    def __init__(self, request: AttemptRequest, stop: StopSignal) -> None:
        self.request, self.phase_timer = request, PhaseTimer()
        self.weights_source: Any = None
        self.loaded_tensors: set[str] = set()
        self.has_begun = False
        self._tensorboard, self._stop = TensorBoardLogger(request.run_dir), stop
        self._save: Callable[[], int] | None = None
        self._next_heartbeat = time.monotonic()

    @property
    def is_main(self) -> bool:
        """Whether this is the one rank that writes."""
        return get_rank() == 0

    @property
    def is_stopping(self) -> bool:
        """A stop request for this process alone.

        Always false for one of several ranks: if one left alone, the others would wait for its gradients.
        """
        return get_world_size() == 1 and self._stop.is_requested()

    def write_event(self, kind: str, **values: Any) -> None:
        """Write an event, once for all ranks."""
        if self.is_main:
            self.request.write_event(kind, **values)
            self._tensorboard.write(kind, values)

    def begin(self, kind: str, save: Callable[[], int] | None = None, **values: Any) -> None:
        """Write the event with which training or prediction begins.

        Args:
            kind: the kind of the event.
            save: saves the run before it is left, and returns its update; None if there is nothing to save.
            values: the values of the event.
        """
        self.has_begun, self._save = True, save
        self.write_event(kind, **values)

    def end(self) -> None:
        """Save nothing from now on when the run is left."""
        self._save = None
        self._stop.allow_stop()

    def report_saving(self, update: int) -> None:
        """Report that a checkpoint is about to be written, which a stop request does not interrupt."""
        self._stop.defer_stop()
        self.write_event("saving", update=update)

    def stop_if_requested(self) -> None:
        """Save and leave if this process was asked to stop: the next batch is late, or will never come."""
        if self.is_stopping:
            self._save_and_stop()

    def heartbeat(self) -> None:
        """Report that work without an event of its own is done, such as a batch of the validation set."""
        if any_rank(self._stop.has_noticed_request):
            self._save_and_stop()
        if time.monotonic() >= self._next_heartbeat:
            self._next_heartbeat = time.monotonic() + _HEARTBEAT_SECONDS
            self.write_event("alive")

    def on_update_end(self) -> None:
        """Raise StopRequested if the run was asked to stop; from now on there is something to save."""
        self._stop.defer_stop()
        if any_rank(
            self._stop.has_noticed_request
        ):  # one that left alone would leave the others waiting for gradients
            self._save_and_stop()

    def _save_and_stop(self) -> NoReturn:
        self._stop.defer_stop()
        save, self._save = self._save, None
        if save is None:
            raise StopRequested("stopped")
        update = save()
        if get_world_size() > 1:  # one that left before the first has saved would end them all
            torch.distributed.barrier()
        raise StopRequested(f"stopped at update {update}, which is saved")


class TensorBoardLogger:
    """Writes the numbers in the events of training for TensorBoard, if tensorboard is installed.

    MMF's own ``training.tensorboard`` writes the loss alone, into folders whose names Windows refuses.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Write the numbers of an event; its update is TensorBoard's step."""
        if kind == "train_started":
            with suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter

                # What an earlier attempt wrote after this update is no longer shown.
                self._writer = SummaryWriter(str(self._folder), purge_step=values["update"] + 1)
        if self._writer is None:
            return
        if not values.get("final"):
            for name, value in series_values({"kind": kind, **values}).items():
                # Runs that earlier versions began have MMF's names in their events.
                self._writer.add_scalar(name.replace("hateful_memes/", ""), value, values["update"])
        self._writer.flush()  # a worker may be killed at any time


def stop_when_batches_stall(observer: Observer) -> None:
    """Let the training save and leave, instead of waiting or failing, if no batch comes after a stop request.

    torch's handler of SIGCHLD would raise an error anywhere, such as between two parts of an update. After a
    stop request it is silent, and the reader of the next batch finds out.
    """

    @wrap(signal_handling, "_error_if_any_worker_fails")
    def check_unless_stopping(check: Callable[[], None]) -> None:
        if not observer.is_stopping:
            check()

    @wrap(dataloader._MultiProcessingDataLoaderIter, "_try_get_data")
    def get_or_stop(get: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            is_there, batch = get(*args, **kwargs)
        except (EOFError, OSError, RuntimeError):
            observer.stop_if_requested()
            raise
        if not is_there:  # for some seconds
            observer.stop_if_requested()
        return is_there, batch
