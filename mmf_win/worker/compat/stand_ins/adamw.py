"""For ``transformers.optimization.AdamW``, which transformers dropped.

MMF's configurations were tuned with its defaults: no weight decay and eps 1e-6. torch's optimizer of the
same name decays by 0.01 and nothing says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class AdamW(torch.optim.AdamW):
    """Adam with decoupled weight decay (arXiv:1711.05101), with the defaults MMF was written for.

    Args:
        params: parameters, or groups of them.
        lr: step size.
        betas: decay rates of the two running averages.
        eps: added to the denominator.
        weight_decay: per step, times ``lr``.
        correct_bias: transformers' option; only True is to be had.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        if not correct_bias:
            raise ValueError("AdamW without bias correction is not available; leave correct_bias out")
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
