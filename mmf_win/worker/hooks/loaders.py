"""Lets a training that was asked to stop save, although a DataLoader's worker has died or hangs."""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch.utils.data import dataloader
from torch.utils.data._utils import signal_handling

from mmf_win.worker.hooks.observer import Observer


def leave_without_batches(observer: Observer) -> None:
    """Let the training save and leave, instead of waiting or failing, if no batch comes after a stop request.

    torch's handler of SIGCHLD would raise an error anywhere, such as between two parts of an update. After a
    stop request it is silent, and the reader of the next batch finds out.
    """
    signals: Any = signal_handling
    iterator: Any = dataloader._MultiProcessingDataLoaderIter
    check, get = signals._error_if_any_worker_fails, iterator._try_get_data

    def check_unless_stopping() -> None:
        if not observer.is_stopping:
            check()

    @wraps(get)
    def get_or_leave(*args: Any, **kwargs: Any) -> Any:
        try:
            is_there, batch = get(*args, **kwargs)
        except (EOFError, OSError, RuntimeError):
            observer.require_batches()
            raise
        if not is_there:  # for some seconds
            observer.require_batches()
        return is_there, batch

    signals._error_if_any_worker_fails = check_unless_stopping
    iterator._try_get_data = get_or_leave
