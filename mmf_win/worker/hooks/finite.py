"""A stop before a NaN reaches the weights, and before such weights reach a checkpoint."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from mmf_win.worker.outcome import Diverged


def check_losses(losses: dict[str, torch.Tensor], update: int) -> None:
    """Stop before the optimizer's step of an update whose loss is no number.

    Autograd's anomaly detection looks for the operation itself, so a NaN is left to it where it is on.

    Args:
        losses: by name, of one batch or a part of one.
        update: the update that is being made.

    Raises:
        Diverged: a loss is NaN or infinite.
    """
    total = float(sum(loss.detach().float().mean() for loss in losses.values()))
    if math.isfinite(total) or (math.isnan(total) and torch.is_anomaly_enabled()):
        return
    raise Diverged(f"the loss of update {update} is {'not a number' if math.isnan(total) else 'infinite'}")


def check_weights(model: nn.Module, update: int) -> None:
    """Refuse to save weights that are no numbers; a gradient may overflow where the loss does not.

    Raises:
        Diverged: they are NaN or infinite.
    """
    broken = next((name for name, weight in model.named_parameters() if not _finite(weight)), None)
    if broken is not None:
        raise Diverged(f"after update {update} the weights are not finite any more ({broken}); not saved")


def _finite(weight: Any) -> bool:
    return bool(torch.isfinite(weight.detach()).all())
