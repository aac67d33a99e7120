"""Patch for torch's DataLoader, which hides how a worker ended and waits forever for a lost batch.

A worker passes tensors through shared memory: one of its threads creates a file in /dev/shm, another one
sends the file handle when the reader asks for it. Without enough shared memory or file handles, both threads
only print an error and continue, and the reader waits.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import wait
from types import ModuleType
from typing import Any

from mmf_win.compat.patch import Patch, wrap

_NO_HANDLE_EXIT_CODE = 24  # exit code of a worker that could not send a handle; torch prints it
_WORKER_EXIT_SECONDS = 10.0  # on a busy machine, a worker that closed its connection needs some time to end


def send_worker_errors(module: ModuleType) -> None:
    """Make a worker send an error instead of a batch that it cannot send; torch raises it in the reader."""
    from torch._utils import ExceptionWrapper

    @wrap(module, "_worker_loop")
    def run_worker_loop(loop: Any, kind: Any, dataset: Any, indices: Any, batches: Any, *rest: Any) -> Any:
        def on_feeder_error(error: Exception, item: Any) -> None:
            traceback.print_exc()
            if isinstance(item, tuple):  # otherwise the pipe is broken and has no reader
                wrapped = ExceptionWrapper(where="in DataLoader worker process")  # type: ignore[no-untyped-call]
                batches.put((item[0], wrapped))

        batches._on_queue_feeder_error = on_feeder_error
        # multiprocessing's thread that sends handles reports its errors through this hook.
        sys.excepthook = _exit_if_out_of_handles
        return loop(kind, dataset, indices, batches, *rest)


def _exit_if_out_of_handles(kind: Any, error: Any, trace: Any) -> None:
    traceback.print_exception(kind, error, trace)
    if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
        os._exit(_NO_HANDLE_EXIT_CODE)


def report_worker_deaths(module: ModuleType) -> None:
    """Make a DataLoader report the signal that killed a worker, or that it ran out of file handles.

    torch's signal handler raises an error with the signal, but the interrupted code may swallow it; torch
    then only names the missing workers. If handles ran out, the reader only sees a closed connection.
    """

    @wrap(module._MultiProcessingDataLoaderIter, "_try_get_data")
    def get_or_report_death(try_get_data: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return try_get_data(self, *args, **kwargs)
        except (EOFError, OSError, RuntimeError) as error:
            with suppress(RuntimeError):  # torch's signal handler may raise during this wait
                ended_sentinels = wait([worker.sentinel for worker in self._workers], _WORKER_EXIT_SECONDS)
                for worker in self._workers:
                    if worker.sentinel in ended_sentinels:
                        worker.join()  # its files are closed before its exit code is available
            codes = {worker.exitcode: worker.pid for worker in self._workers}
            if _NO_HANDLE_EXIT_CODE in codes:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
            for code, pid in codes.items():
                if code is not None and code < 0:  # same message as torch's
                    name = signal.strsignal(-code)
                    message = f"DataLoader worker (pid {pid}) is killed by signal: {name}."
                    raise RuntimeError(message) from error
            raise


PATCHES = (
    Patch(
        name="loader-workers",
        problem="DataLoader: waits forever for a batch that a worker cannot send; hides how a worker died",
        library="torch",
        after_import={
            "torch.utils.data._utils.worker": send_worker_errors,
            "torch.utils.data.dataloader": report_worker_deaths,
        },
    ),
)
