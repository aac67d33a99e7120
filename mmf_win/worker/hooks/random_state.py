"""State of the random generators and of a model, to save and to restore."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch import nn


def get_rng_state() -> dict[str, Any]:
    """Return the state of the generators of Python, NumPy, torch and all GPUs.

    Returns:
        Tensors and plain values only, which ``torch.load`` can read with ``weights_only``.
    """
    numbers: Any = numpy.random.get_state()
    name, key, *rest = numbers
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(key.astype(numpy.int64)), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore the generators; those of GPUs only if the number of GPUs is unchanged."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, key, *rest = state["numpy"]
    numpy.random.set_state((name, key.cpu().numpy().astype(numpy.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([gpu_state.cpu() for gpu_state in state["cuda"]])


@contextmanager
def preserve_state(model: nn.Module, optimizer: Any) -> Iterator[None]:
    """Restore weights, buffers, modes, the optimizer and the generators on exit; clear the gradients."""
    tensors = [*model.parameters(), *model.buffers()]
    weights = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
    modes = {module: module.training for module in model.modules()}
    optimizer_state, rng_state = copy.deepcopy(optimizer.state_dict()), get_rng_state()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, saved in zip(tensors, weights, strict=True):
                tensor.copy_(saved)
        for module, mode in modes.items():
            module.training = mode
        optimizer.load_state_dict(optimizer_state)
        model.zero_grad(set_to_none=True)
        set_rng_state(rng_state)
