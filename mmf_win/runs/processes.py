"""The processes that train together: how many, on which machines, and whether they can."""

from __future__ import annotations

import logging
import os
from typing import Any

from mmf_win import machine
from mmf_win.errors import UsageError
from mmf_win.runs.request import CommandOptions
from mmf_win.upstream.config import Tree
from mmf_win.upstream.settings import of_launchers

_log = logging.getLogger(__name__)


def processes(once: CommandOptions) -> dict[str, Any]:
    """What an :class:`~mmf_win.protocol.Attempt` says of them. Raises UsageError where they cannot begin."""
    found = 0 if once.cpu else machine.count_gpus()
    nproc = max(1, found) if once.nproc == "auto" else int(once.nproc or 1)
    if found and nproc > found:
        there = "there is 1 GPU" if found == 1 else f"there are {found} GPUs"
        raise UsageError(f"--nproc {nproc}: {there}", hint="--nproc auto takes all; --cpu trains on the CPU")
    if found > 1 and once.nproc is None:
        _log.info("training on 1 of %d GPUs; --nproc auto takes all", found)
    if once.nnodes == 1 and (once.rdzv, once.node_rank) != (None, None):
        raise UsageError("--rdzv and --node-rank are for several machines", hint="--nnodes says how many")
    if once.nnodes > 1:
        host, _, port = (once.rdzv or "").rpartition(":")
        if once.node_rank is None or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UsageError("several machines need --rdzv HOST:PORT of the first one, and --node-rank N")
        if once.node_rank >= once.nnodes:
            raise UsageError(f"--node-rank {once.node_rank}: it is from 0 to {once.nnodes - 1}")
    if left := of_launchers(os.environ):
        _log.warning("ignoring %s of the environment: mmfw starts its processes itself", ", ".join(left))
    return {"nproc": nproc, "nnodes": once.nnodes, "node_rank": once.node_rank or 0, "rdzv": once.rdzv}


def require_even(config: Tree, count: int) -> None:
    """Raise UsageError where a batch cannot be divided among ``count`` processes."""
    batch = config["training"]["batch_size"]
    if not isinstance(batch, int) or batch % count == 0:
        return
    even = [str(number) for number in range(1, batch + 1) if batch % number == 0]
    raise UsageError(
        f"a batch of {batch} rows cannot be divided evenly among {count} processes",
        hint=f"as many as divide it: {', '.join(even)}; or another --batch-size",
    )
