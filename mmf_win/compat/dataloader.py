"""A patch for torch's DataLoader: it hides how a worker ended, and waits for ever for a lost batch.

A worker hands tensors over as shared memory: a thread of its own makes a file in /dev/shm, another passes the
file's handle on when the reader asks for it. Where there is too little shared memory or no handle left, both
threads print an error and go on, and the reader waits.
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

_NO_HANDLE_EXIT_CODE = 24  # exit code of a worker that could not pass a handle on; torch prints it
_WORKER_EXIT_SECONDS = (
    10.0  # seconds for a worker to be gone that has closed its end, on a machine that is busy
)


def send_worker_errors(module: ModuleType) -> None:
    """Let a worker send, for a batch that it cannot send, the error; torch raises it in the reader."""
    from torch._utils import ExceptionWrapper

    @wrap(module, "_worker_loop")
    def run_worker_loop(loop: Any, kind: Any, dataset: Any, indices: Any, batches: Any, *others: Any) -> Any:
        def on_feeder_error(error: Exception, item: Any) -> None:
            traceback.print_exc()
            if isinstance(item, tuple):  # else the pipe is broken, and nobody reads
                wrapped = ExceptionWrapper(where="in DataLoader worker process")  # type: ignore[no-untyped-call]
                batches.put((item[0], wrapped))

        batches._on_queue_feeder_error = on_feeder_error
        sys.excepthook = (
            _exit_if_out_of_handles  # by which multiprocessing's thread that passes handles tells its errors
        )
        return loop(kind, dataset, indices, batches, *others)


def _exit_if_out_of_handles(kind: Any, error: Any, trace: Any) -> None:
    traceback.print_exception(kind, error, trace)
    if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
        os._exit(_NO_HANDLE_EXIT_CODE)


def report_worker_deaths(module: ModuleType) -> None:
    """Let a DataLoader say which signal killed a worker, or that it had no file handle left.

    torch's signal handler says the former, but what the handler interrupts may swallow its error; torch then
    only names the workers that are missing. Of the latter, the reader sees a closed connection.
    """

    @wrap(module._MultiProcessingDataLoaderIter, "_try_get_data")
    def get_or_report_death(try_get_data: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return try_get_data(self, *args, **kwargs)
        except (EOFError, OSError, RuntimeError) as error:
            with suppress(RuntimeError):  # torch's signal handler tells of its end, too
                ended = wait([worker.sentinel for worker in self._workers], _WORKER_EXIT_SECONDS)
                for worker in self._workers:
                    if worker.sentinel in ended:
                        worker.join()  # the system closes its files before it has an exit code
            codes = {worker.exitcode: worker.pid for worker in self._workers}
            if _NO_HANDLE_EXIT_CODE in codes:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
            for code, pid in codes.items():
                if code is not None and code < 0:  # in torch's own words
                    name = signal.strsignal(-code)
                    message = f"DataLoader worker (pid {pid}) is killed by signal: {name}."
                    raise RuntimeError(message) from error
            raise


PATCHES = (
    Patch(
        name="loader-workers",
        problem="DataLoader: waits for ever for a batch that a worker cannot send; hides how a worker died",
        library="torch",
        after_import={
            "torch.utils.data._utils.worker": send_worker_errors,
            "torch.utils.data.dataloader": report_worker_deaths,
        },
    ),
)
