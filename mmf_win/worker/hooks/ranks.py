"""The ranks of a training: the processes that make each update together, each with its part of the batch.

Each calculates with a copy of the model; before the optimizer's step, torch's DistributedDataParallel makes
every gradient the mean of all ranks'. Each rank scores the whole validation set, so that a score is never put
together from parts.
"""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def get_world_size() -> int:
    """How many processes train together."""
    several = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if several else 1


def get_rank() -> int:
    """Which of them this one is; the first one writes."""
    return distributed.get_rank() if get_world_size() > 1 else 0


def rank_rows(rows: int) -> range:
    """Which of the rows of a batch are this rank's, as equal as can be, and maybe none."""
    return range(rows * get_rank() // get_world_size(), rows * (get_rank() + 1) // get_world_size())


def any_rank(value: bool) -> bool:
    """Whether this holds on any rank; all of them ask at the same time."""
    if get_world_size() == 1:
        return value
    answer = _to_backend_device(torch.tensor(int(value)))
    distributed.all_reduce(answer, distributed.ReduceOp.MAX)
    return bool(answer.item())


def broadcast_from_first(value: torch.Tensor) -> torch.Tensor:
    """The first rank's ``value``, on the CPU; all of them ask at the same time, with the same shape."""
    if get_world_size() == 1:
        return value
    sent = _to_backend_device(value.clone())
    distributed.broadcast(sent, src=0)
    return sent.cpu()


def broadcast_weights(trainer: Any) -> None:
    """Give the model of every rank the weights of the first, of whose files another machine has none."""
    if get_world_size() > 1:
        for value in trainer.model.state_dict().values():
            value.copy_(broadcast_from_first(value.detach()))


def wrap_ddp(trainer: Any) -> None:
    """Let the gradients of the trainer's model be those of all ranks."""
    if get_world_size() == 1:
        return
    from mmf.common.registry import registry

    registry.register("distributed", True)  # then MMF looks into it for the weights that it saves
    devices = [0] if trainer.device.type == "cuda" else None
    # Of several models of MMF some weights have no part in the loss; without the search an update would fail.
    trainer.model = DistributedDataParallel(trainer.model, device_ids=devices, find_unused_parameters=True)


def seed_rank(seed: int, update: int) -> None:
    """Let each rank but the first draw numbers of its own; they depend on the seed and the update alone.

    So a checkpoint needs those of the first rank and no others, and any number of ranks can resume from it.
    The sequences are independent: https://numpy.org/doc/stable/reference/random/parallel.html
    """
    if get_rank():
        [own] = numpy.random.SeedSequence((seed, get_rank(), update)).generate_state(1)
        random.seed(int(own))
        numpy.random.seed(own)
        torch.manual_seed(int(own))


def _to_backend_device(value: torch.Tensor) -> torch.Tensor:
    """``value`` where the ranks exchange it."""
    return value.cuda() if distributed.get_backend() == "nccl" else value
