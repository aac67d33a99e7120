"""The ranks of a distributed training: processes that make each update together.

Each rank uses a copy of the model and its part of the batch. Before the optimizer's step, torch's
DistributedDataParallel averages the gradients over all ranks. Each rank scores the whole validation set, so
scores never have to be merged.
"""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def get_world_size() -> int:
    """Return the number of processes that train together."""
    is_distributed = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if is_distributed else 1


def get_rank() -> int:
    """Return the number of this process; rank 0 writes the files."""
    return distributed.get_rank() if get_world_size() > 1 else 0


def rank_rows(rows: int) -> range:
    """Return the range of batch rows assigned to this rank, which may be empty."""
    return range(rows * get_rank() // get_world_size(), rows * (get_rank() + 1) // get_world_size())


def any_rank(value: bool) -> bool:
    """Return whether ``value`` is true on any rank; all ranks must call this at the same time."""
    if get_world_size() == 1:
        return value
    any_value = _to_backend_device(torch.tensor(int(value)))
    distributed.all_reduce(any_value, distributed.ReduceOp.MAX)
    return bool(any_value.item())


def broadcast_from_first(value: torch.Tensor) -> torch.Tensor:
    """Return the ``value`` of rank 0, on the CPU.

    All ranks must call this at the same time, with the same shape.
    """
    if get_world_size() == 1:
        return value
    shared = _to_backend_device(value.clone())
    distributed.broadcast(shared, src=0)
    return shared.cpu()


def broadcast_weights(trainer: Any) -> None:
    """Copy the weights of rank 0 to all ranks; other machines do not have its files."""
    if get_world_size() > 1:
        for value in trainer.model.state_dict().values():
            value.copy_(broadcast_from_first(value.detach()))


def wrap_ddp(trainer: Any) -> None:
    """Wrap the trainer's model so that gradients are averaged over all ranks."""
    if get_world_size() == 1:
        return
    from mmf.common.registry import registry

    registry.register("distributed", obj=True)  # makes MMF unwrap the model when it saves
    devices = [0] if trainer.device.type == "cuda" else None
    # Some models of MMF have weights that do not affect the loss; DDP fails unless it searches for them.
    trainer.model = DistributedDataParallel(trainer.model, device_ids=devices, find_unused_parameters=True)


def seed_rank(seed: int, update: int) -> None:
    """Seed every rank except the first with its own numbers, which only depend on the seed and the update.

    A checkpoint therefore only stores the generators of rank 0, and any number of ranks can resume from it.
    The sequences are independent: https://numpy.org/doc/stable/reference/random/parallel.html
    """
    if get_rank():
        [rank_seed] = numpy.random.SeedSequence((seed, get_rank(), update)).generate_state(1)
        random.seed(int(rank_seed))
        numpy.random.seed(rank_seed)
        torch.manual_seed(int(rank_seed))


def _to_backend_device(value: torch.Tensor) -> torch.Tensor:
    """Move a tensor to the device on which the backend exchanges tensors."""
    return value.cuda() if distributed.get_backend() == "nccl" else value
