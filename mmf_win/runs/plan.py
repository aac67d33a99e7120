"""Plans the attempts of a run: what the first one does, and what the next one does after memory ran out.

That includes the processes that train together: how many, on which machines, and whether they can.
The order in which attempts shrink is in :func:`limit_to_lower`.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmf_win import machine
from mmf_win.errors import UsageError
from mmf_win.protocol import Action, Attempt, Event, Exit
from mmf_win.runs import fits
from mmf_win.runs.request import CommandOptions, Job, lasting
from mmf_win.runs.targets import Target
from mmf_win.upstream import settings
from mmf_win.upstream.config import Tree, merge
from mmf_win.upstream.install import Installed
from mmf_win.upstream.versions import has_key, read_version

_log = logging.getLogger(__name__)


def training(mmf: Installed, job: Job, checkpoint: Path | None, *, weights_alone: bool) -> Attempt:
    """The first attempt to train, without the overrides of this command.

    Without a checkpoint it starts from the weights that MMF begins with. With ``weights_alone``, only the
    weights of the checkpoint are taken, and it begins at update 0.
    """
    request, once, places, ours = job.request, job.once, job.places, job.request.ours
    # In fp16, updates overflow now and then, and are left out; an anomaly of each would end the training.
    detect_anomaly = once.detect_anomaly and ours.precision != "fp16"
    together = processes(once)
    # MMF loads the test set before it trains, and fails without one.
    has_test = places.dataset.split(request.splits["test"]).is_file()
    splits = request.splits if has_test else {**request.splits, "test": request.splits["val"]}
    tree = merge(
        settings.common(request.model, splits, mmf.version, together["nproc"]),
        settings.train(ours.updates),
        request.of_mmf,
        {"training": {"detect_anomaly": True}} if detect_anomaly else {},  # for 1.0.0rc10 by a patch
        settings.resume(checkpoint) if checkpoint else {},
    )
    return replace(
        _attempt("train", mmf, job, tree, checkpoint),
        weights_alone=weights_alone,
        keep=ours.keep,
        find_micro_batch=ours.auto_batch,
        fits=fits.load() if once.use_known_fits else {},
        **together,
    )


def prediction(mmf: Installed, job: Job, target: Target, checkpoint: Path, features: Path | None) -> Attempt:
    """The first attempt to predict, without the overrides of this command.

    ``features`` is an LMDB of region features to read instead of the dataset's.
    """
    request = job.request
    tree = merge(
        settings.common(request.model, request.splits, mmf.version),
        request.of_mmf,
        settings.predict(checkpoint, mmf.version),
        target.settings,
        settings.for_every_split(features=features) if features else {},
    )
    first = _attempt("predict", mmf, job, tree, checkpoint)
    return replace(first, annotations=str(target.annotations), keep_annotations=target.is_own)


def _attempt(action: Action, mmf: Installed, job: Job, tree: Tree, checkpoint: Path | None) -> Attempt:
    request, ours, images = job.request, job.request.ours, job.places.images
    return Attempt(
        action,
        request.model,
        str(mmf.root),
        settings=settings.with_hooks(tree, mmf.version, ours.precision),
        base_config=request.config,
        checkpoint=str(checkpoint) if checkpoint else None,
        precision=ours.precision,
        fast=ours.fast,
        trust=job.once.trust,
        images=str(images) if images else None,
    )


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
    if left := settings.of_launchers(os.environ):
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


def limit_to_lower(failed: Attempt, end: Exit, started: Event | None) -> tuple[str, int, int] | None:
    """What the next attempt has less of, as name, old and new number.

    When the host's memory was at its end, half the ``workers`` of the DataLoader, down to none. When the
    memory of a GPU was in validation or prediction, a smaller ``eval_batch``; else a smaller ``micro_batch``,
    while an update keeps its rows. None when neither is the cause, or nothing smaller is left.

    ``started`` is the event that tells what the failed one really had; without it, not even the model fitted.
    """
    if started is None:
        return None
    workers, batch = started["workers"], started["batch"]
    if end.outcome == "host_oom":
        return ("workers", workers, workers // 2) if workers else None
    if end.outcome != "cuda_oom":
        return None
    if end.validating or failed.action == "predict":
        name, had = "eval_batch", failed.eval_batch or batch
    else:
        name, had = "micro_batch", started["micro_batch"]
    fewer = smaller_rows(batch, had)
    return (name, had, fewer) if fewer else None


def smaller_rows(batch: int, failed: int) -> int | None:
    """The rows at which a batch is cut into twice as many parts as with ``failed``; None at one row.

    A batch is cut into parts that are as equal as can be, so a limit of 23 rows would divide 31 as one of 16
    does.
    """
    parts = 2 * math.ceil(batch / failed)
    return math.ceil(batch / parts) if failed > 1 else None


def following(failed: Attempt, name: str, number: int, started: Event, saved: Path | None) -> Attempt:
    """The attempt after one for which memory did not suffice.

    Args:
        failed: what was asked of that one.
        name, number: what this one has less of, as :func:`limit_to_lower` says, and how many of it.
        started: the event that tells with which seed that one began.
        saved: the newest intact checkpoint, if that one saved any; else this one begins where that one did.
    """
    following = failed
    needed: Tree = {}
    if saved is not None:
        following = replace(
            failed,
            # What says where a run starts must not send a later attempt back there.
            settings=merge(lasting(failed.settings), settings.resume(saved)),
            checkpoint=str(saved),
            weights_alone=False,
        )
    elif failed.action == "train" and (failed.checkpoint is None or failed.weights_alone):
        needed["training"] = {"seed": started["seed"]}
    if name == "workers":
        needed = merge(needed, {"training": {"num_workers": number}})
    elif name == "eval_batch":
        following = replace(following, eval_batch=number)
        # It keeps the scores of a full set off the GPU; where MMF has no such key, a hook does.
        if has_key(read_version(Path(failed.mmf)), "evaluation.use_cpu"):
            needed["evaluation"] = {"use_cpu": True}
    else:
        following = replace(following, micro_batch=number)
    return replace(following, settings=merge(following.settings, needed))
