"""Lets a training that was asked to stop save, although a DataLoader's worker has died or hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader
from torch.utils.data._utils import signal_handling

from mmf_win.compat.patch import wrap
from mmf_win.worker.hooks.observer import Observer


def leave_without_batches(observer: Observer) -> None:
    """Let the training save and leave, instead of waiting or failing, if no batch comes after a stop request.

    torch's handler of SIGCHLD would raise an error anywhere, such as between two parts of an update. After a
    stop request it is silent, and the reader of the next batch finds out.
    """

    @wrap(signal_handling, "_error_if_any_worker_fails")
    def check_unless_stopping(check: Callable[[], None]) -> None:
        if not observer.is_stopping:
            check()

    @wrap(dataloader._MultiProcessingDataLoaderIter, "_try_get_data")
    def get_or_leave(get: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            is_there, batch = get(*args, **kwargs)
        except (EOFError, OSError, RuntimeError):
            observer.require_batches()
            raise
        if not is_there:  # for some seconds
            observer.require_batches()
        return is_there, batch
