"""Guards that end a run: at losses and weights that are not finite, and at weights that were not loaded."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from mmf_win.worker.outcome import Diverged, WeightsMissing


def check_losses(losses: dict[str, torch.Tensor], update: int) -> None:
    """Stop before the optimizer's step of an update whose loss is not finite.

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
    """Refuse to save weights that are not finite; a gradient may overflow where the loss does not.

    Raises:
        Diverged: they are NaN or infinite.
    """
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight.detach()).all():
            raise Diverged(f"after update {update} the weights are not finite any more ({name}); not saved")


def require_all_weights(model: nn.Module) -> None:
    """Make ``model.load_state_dict`` raise :class:`WeightsMissing` when it leaves a parameter unset.

    MMF loads with ``strict=False``, and would evaluate a model with a random head as if it had been trained.
    """
    model.register_load_state_dict_post_hook(_refuse_missing)  # type: ignore[no-untyped-call]


def _refuse_missing(model: nn.Module, keys: Any) -> None:
    parameters = dict(model.named_parameters())
    missing = [key for key in keys.missing_keys if key in parameters]
    if missing:
        some = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise WeightsMissing(
            f"the checkpoint lacks {len(missing)} of the model's {len(parameters)} parameters ({some})",
            hint="name a checkpoint of this very model and configuration",
        )
