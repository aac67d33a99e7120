"""Launcher of the ranks of a training on this machine.

torch's elastic agent starts one process per rank, connects the machines and ends all ranks when one fails.
It never restarts a rank: mmfw starts a new attempt instead.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from mmf_win.errors import DataError
from mmf_win.protocol import AttemptOutcome, AttemptRequest
from mmf_win.upstream.default_settings import launcher_variables
from mmf_win.worker.stop_signal import StopSignal

_RENDEZVOUS_SECONDS = 60  # timeout for the machines to connect
_GROUP_TIMEOUT = timedelta(minutes=10)  # timeout of collective operations
_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def launch_ranks(
    request: AttemptRequest, request_file: Path, stop: StopSignal, run_rank: Callable[[str], None]
) -> AttemptOutcome:
    """Run ``run_rank`` in one process per rank and return the outcome of the first failure.

    Args:
        request: The attempt to run.
        request_file: The file of the request, which is passed to ``run_rank``.
        stop: The stop signal of this process.
        run_rank: The function that each process calls.

    Returns:
        The outcome ``ok`` if all ranks succeed; else the first cause (see :func:`find_first_cause`).
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    from torch.multiprocessing.spawn import ProcessContext

    original_join, exit_codes = ProcessContext.join, dict[int, int]()

    def join_and_record_codes(self: ProcessContext, *args: Any, **kwargs: Any) -> bool:
        """Record failed ranks; the agent calls this ten times a second and kills the others on failure."""
        stop.defer_stop()  # the ranks check for the stop request themselves
        exit_codes.update({rank: process.exitcode for rank, process in enumerate(self.processes) if process.exitcode})
        return bool(original_join(self, *args, **kwargs))

    ProcessContext.join = join_and_record_codes  # type: ignore[method-assign]
    vars(signal)["signal"] = lambda *_: None  # the agent would replace our handlers and kill all ranks
    if sys.platform == "win32":
        os.environ["USE_LIBUV"] = "0"  # torch is built without libuv on Windows
    try:
        elastic_launch(LaunchConfig(**_launch_config(request)), run_rank)(str(request_file))
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        return find_first_cause(request, exit_codes | {failure.local_rank: failure.exitcode})
    except Exception as error:
        traceback.print_exc()
        task = request.train_task
        if task.rdzv is None:
            return AttemptOutcome("internal", f"{type(error).__name__}: {error}")
        reason = str(error).partition("\n")[0]
        message = f"{task.rdzv}: cannot connect {task.nnodes} machines ({reason})"
        hint = "set --rdzv to a HOST:PORT of the first machine that the others can reach, and start all together"
        return AttemptOutcome("network", message, hint)
    return AttemptOutcome("ok")


def _launch_config(request: AttemptRequest) -> Mapping[str, Any]:
    task = request.train_task
    config: dict[str, Any] = {"min_nodes": task.nnodes, "max_nodes": task.nnodes, "run_id": "mmfw"}
    config |= {"nproc_per_node": task.nproc, "max_restarts": 0, "start_method": "spawn"}
    if task.rdzv is not None:
        rendezvous_options = {"rank": task.node_rank, "timeout": _RENDEZVOUS_SECONDS}
        return config | {"rdzv_backend": "static", "rdzv_endpoint": task.rdzv, "rdzv_configs": rendezvous_options}
    config |= {"rdzv_backend": "c10d", "local_addr": "localhost"}
    if sys.platform == "win32":
        store_file = str(request.folder.path / "rendezvous")
        return config | {"rdzv_endpoint": store_file, "rdzv_configs": {"store_type": "file"}}
    return config | {"rdzv_endpoint": "localhost:0"}


def find_first_cause(request: AttemptRequest, exit_codes: Mapping[int, int]) -> AttemptOutcome:
    """Return the outcome that a failed rank recorded, or one from the exit code of a killed rank.

    Args:
        request: The attempt that failed.
        exit_codes: Exit codes by local rank, without the ranks that the agent killed.

    Returns:
        The outcome of the whole attempt.
    """
    recorded = None
    with suppress(DataError):
        recorded = AttemptOutcome.load(request.folder.helper_outcome_file)
    # A rank that waits for a dead one fails, too: it records an outcome or aborts (SIGABRT).
    rank, code = min(exit_codes.items(), key=lambda each: (each[1] > 0, each[1] == -signal.SIGABRT))
    if recorded is None or (code < 0 and recorded.kind in ("killed", "internal")):
        return AttemptOutcome.from_exit_code(code, f"process {rank}")
    return recorded


def select_local_gpu() -> None:
    """Make only one GPU visible to this rank, before it uses any: MMF refers to device 0 in many places."""
    names = os.environ[_VISIBLE_DEVICES].split(",")
    os.environ[_VISIBLE_DEVICES] = names[int(os.environ["LOCAL_RANK"])] if len(names) > 1 else names[0]


def join_process_group(request: AttemptRequest) -> None:
    """Join the process group of all ranks and hide the launcher's environment variables from MMF."""
    import torch

    init_options: dict[str, Any] = {}
    task = request.train_task
    if sys.platform == "win32" and task.rdzv is None:
        file = (request.folder.path / "group").as_uri()
        init_options = {"init_method": file, "rank": int(os.environ["RANK"]), "world_size": task.nproc}
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend, timeout=_GROUP_TIMEOUT, **init_options)
    for name in launcher_variables(os.environ):
        del os.environ[name]
