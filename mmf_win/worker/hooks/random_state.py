"""The state of every random generator that training draws from, as a checkpoint can hold it."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch

State = dict[str, Any]
"""Tensors and plain values only, which ``torch.load`` reads with ``weights_only``."""


def random_state() -> State:
    """The state of Python's, NumPy's and torch's generators, and of each GPU's."""
    numbers: Any = numpy.random.get_state()
    name, key, *rest = numbers
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(key.astype(numpy.int64)), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: State) -> None:
    """Put the generators back into a state of :func:`random_state`.

    Those of GPUs are left as they are where there are more or fewer of them now.
    """
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, key, *rest = state["numpy"]
    numpy.random.set_state((name, key.cpu().numpy().astype(numpy.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([each.cpu() for each in state["cuda"]])
