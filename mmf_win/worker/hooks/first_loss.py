"""Judgement of the first loss of a new head: random guesses have a cross-entropy of about ln 2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

# If the two scores of a new head differ by a large d, the first loss is about d/2. A loss of 3 requires
# unscaled inputs (correct small models start with up to 1.9), and 0.2 a model that sees the labels.
_USUAL_RANGE = (0.2, 3.0)


def has_fresh_head(model: nn.Module, loaded_tensors: Iterable[str]) -> bool:
    """Return whether the model has a head, recognized by its bias of two numbers, that was not loaded."""
    model = getattr(model, "module", model)  # with several ranks, the model is wrapped
    heads = {name for name, parameter in model.named_parameters() if parameter.shape == (2,)}
    return bool(heads) and heads.isdisjoint(loaded_tensors)


def total_loss(losses: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss that MMF minimizes."""
    return torch.stack([loss.float().mean() for loss in losses.values()]).sum()


def describe_odd_loss(losses: Mapping[str, torch.Tensor]) -> str | None:
    """Describe an implausible first loss of a fresh head; ``None`` if it is plausible or unknown."""
    value = total_loss(losses).item()
    if len(losses) != 1 or "cross_entropy" not in next(iter(losses)) or _USUAL_RANGE[0] <= value <= _USUAL_RANGE[1]:
        return None
    cause = "the model sees the label" if value < _USUAL_RANGE[0] else "the inputs or the scores are not scaled"
    return f"the first loss is {value:.2f} instead of about 0.69 (ln 2) for a new head: perhaps {cause}"
