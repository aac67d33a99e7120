"""Reports of a run as events and TensorBoard curves, and the response to stop requests."""

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
    """The worker's side of the protocol with the parent.

    Attributes:
        request: The attempt of this process.
        phase_timer: Measures the phases of training.
        weights_source: The file of the weights that are being loaded, or their name in a model zoo.
        loaded_tensors: Names of the model's tensors that were loaded from files before training.
        has_begun: Training or prediction has begun.
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
        """``True`` for the one rank that writes."""
        return get_rank() == 0

    @property
    def is_stopping(self) -> bool:
        """True if a stop was requested and no other process takes part.

        Always ``False`` if there are several ranks: if one stopped alone, the others would wait for its
        gradients.
        """
        return get_world_size() == 1 and self._stop.is_requested()

    def write_event(self, kind: str, **values: Any) -> None:
        """Write an event, once for all ranks."""
        if self.is_main:
            self.request.write_event(kind, **values)
            self._tensorboard.write(kind, values)

    def begin(self, kind: str, save: Callable[[], int] | None = None, **values: Any) -> None:
        """Write the event that starts training or prediction.

        Args:
            kind: The kind of the event.
            save: Saves the run before it stops and returns its update; ``None`` if there is nothing to save.
            values: The values of the event.
        """
        self.has_begun, self._save = True, save
        self.write_event(kind, **values)

    def end(self) -> None:
        """Do not save any more when the run stops."""
        self._save = None
        self._stop.allow_stop()

    def report_saving(self, update: int) -> None:
        """Report that a checkpoint is about to be written; a stop request does not interrupt this."""
        self._stop.defer_stop()
        self.write_event("saving", update=update)

    def stop_if_requested(self) -> None:
        """Save and stop if requested; for use while the next batch is late or may never arrive."""
        if self.is_stopping:
            self._save_and_stop()

    def heartbeat(self) -> None:
        """Report work that has no event of its own, such as a validation batch; stop if requested."""
        if any_rank(self._stop.has_noticed_request):
            self._save_and_stop()
        if time.monotonic() >= self._next_heartbeat:
            self._next_heartbeat = time.monotonic() + _HEARTBEAT_SECONDS
            self.write_event("alive")

    def defer_stop(self) -> None:
        """Save before stopping from now on, because there is an update to save."""
        self._stop.defer_stop()

    def on_update_end(self) -> None:
        """Save and stop if requested."""
        self._stop.defer_stop()
        if any_rank(self._stop.has_noticed_request):  # otherwise, other ranks would wait for gradients
            self._save_and_stop()

    def _save_and_stop(self) -> NoReturn:
        self._stop.defer_stop()
        save, self._save = self._save, None
        if save is None:
            raise StopRequested("stopped")
        update = save()
        if get_world_size() > 1:  # a rank that exits before the first one has saved would end all
            torch.distributed.barrier()
        raise StopRequested(f"stopped at update {update}; checkpoint saved")


class TensorBoardLogger:
    """Logger of the numbers in training events for TensorBoard, if tensorboard is installed.

    MMF's ``training.tensorboard`` only writes the loss, to folders with names that Windows does not allow.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Write the numbers of an event with its update as the step."""
        if kind == "train_started":
            with suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter

                # Hide what an earlier attempt wrote after this update.
                self._writer = SummaryWriter(str(self._folder), purge_step=values["update"] + 1)
        if self._writer is None:
            return
        if not values.get("final"):
            for name, value in series_values({"kind": kind, **values}).items():
                # Runs that were started by earlier versions use MMF's metric names.
                self._writer.add_scalar(name.replace("hateful_memes/", ""), value, values["update"])
        self._writer.flush()  # a worker may be killed at any time


def stop_when_batches_stall(observer: Observer) -> None:
    """Make training save and stop if no batch arrives after a stop request.

    torch's handler of SIGCHLD would raise an error at any point, for example between two micro-batches of an
    update. After a stop request it does nothing; reading the next batch then detects the dead workers.
    """

    @wrap(signal_handling, "_error_if_any_worker_fails")
    def check_unless_stopping(check: Callable[[], None]) -> None:
        if not observer.is_stopping:
            check()

    @wrap(dataloader._MultiProcessingDataLoaderIter, "_try_get_data")
    def get_or_stop(get: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            has_batch, batch = get(*args, **kwargs)
        except (EOFError, OSError, RuntimeError):
            observer.stop_if_requested()
            raise
        if not has_batch:  # none arrived within some seconds
            observer.stop_if_requested()
        return has_batch, batch
