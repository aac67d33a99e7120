"""Starts the ranks of a training that run on this machine, and says how they ended.

torch's elastic agent starts each in a process of its own, lets those of several machines meet, and ends all
when one fails. It never starts them again: a new attempt does.
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

_RENDEZVOUS_SECONDS = 60  # seconds in which all machines must have come
_GROUP_TIMEOUT = timedelta(minutes=10)  # with a rank that does not answer
_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def launch_ranks(
    request: AttemptRequest, request_file: Path, stop: StopSignal, run_rank: Callable[[str], None]
) -> AttemptOutcome:
    """Run ``rank`` with the request's file in each process; return the first cause of their end."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    from torch.multiprocessing.spawn import ProcessContext

    look, codes = ProcessContext.join, dict[int, int]()

    def join_and_record_codes(self: ProcessContext, *args: Any, **kwargs: Any) -> bool:
        """Note failed ranks; the agent calls this ten times a second, and kills the rest after a failure."""
        stop.defer_stop()  # from now on there are ranks, which look for it
        codes.update({n: each.exitcode for n, each in enumerate(self.processes) if each.exitcode})
        return bool(look(self, *args, **kwargs))

    ProcessContext.join = join_and_record_codes  # type: ignore[method-assign]
    vars(signal)["signal"] = lambda *_: None  # else the agent takes our signals, and ends all at once
    if sys.platform == "win32":
        os.environ["USE_LIBUV"] = "0"  # torch is built without it there
    try:
        elastic_launch(LaunchConfig(**_launch_config(request)), run_rank)(str(request_file))
    except ChildFailedError as error:
        _, failed = error.get_first_failure()
        return find_first_cause(request, codes | {failed.local_rank: failed.exitcode})
    except Exception as error:
        traceback.print_exc()
        task = request.train_task
        if task.rdzv is None:
            return AttemptOutcome("internal", f"{type(error).__name__}: {error}")
        reason = str(error).partition("\n")[0]
        message = f"{task.rdzv}: {task.nnodes} machines did not meet there ({reason})"
        hint = "--rdzv names the first machine, and a port of it that the others can reach; start all at once"
        return AttemptOutcome("network", message, hint)
    return AttemptOutcome("ok")


def _launch_config(request: AttemptRequest) -> Mapping[str, Any]:
    task = request.train_task
    config: dict[str, Any] = {"min_nodes": task.nnodes, "max_nodes": task.nnodes, "run_id": "mmfw"}
    config |= {"nproc_per_node": task.nproc, "max_restarts": 0, "start_method": "spawn"}
    if task.rdzv is not None:
        where = {"rank": task.node_rank, "timeout": _RENDEZVOUS_SECONDS}
        return config | {"rdzv_backend": "static", "rdzv_endpoint": task.rdzv, "rdzv_configs": where}
    config |= {"rdzv_backend": "c10d", "local_addr": "localhost"}
    if sys.platform == "win32":
        file = str(request.folder.path / "rendezvous")
        return config | {"rdzv_endpoint": file, "rdzv_configs": {"store_type": "file"}}
    return config | {"rdzv_endpoint": "localhost:0"}


def find_first_cause(request: AttemptRequest, exit_codes: Mapping[int, int]) -> AttemptOutcome:
    """Return what the first rank that failed said, unless one died of a signal and so could not say anything.

    ``codes`` are the exit codes of the ranks of this machine that were not killed by us.
    """
    said = None
    with suppress(DataError):
        said = AttemptOutcome.load(request.folder.helper_outcome_file)
    # One that only waits for a dead one may say so, or abort.
    number, code = min(exit_codes.items(), key=lambda each: (each[1] > 0, each[1] == -signal.SIGABRT))
    if said is None or (code < 0 and said.kind in ("killed", "internal")):
        return AttemptOutcome.from_exit_code(code, f"process {number}")
    return said


def select_local_gpu() -> None:
    """Leave to this rank, which has not used any, one of the GPUs: MMF calls its device 0 in many places."""
    names = os.environ[_VISIBLE_DEVICES].split(",")
    os.environ[_VISIBLE_DEVICES] = names[int(os.environ["LOCAL_RANK"])] if len(names) > 1 else names[0]


def join_process_group(request: AttemptRequest) -> None:
    """Form a group with the other ranks, of which MMF then reads nothing in the environment."""
    import torch

    where: dict[str, Any] = {}
    task = request.train_task
    if sys.platform == "win32" and task.rdzv is None:
        file = (request.folder.path / "group").as_uri()
        where = {"init_method": file, "rank": int(os.environ["RANK"]), "world_size": task.nproc}
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend, timeout=_GROUP_TIMEOUT, **where)
    for name in launcher_variables(os.environ):
        del os.environ[name]
