"""What the first loss tells of a head that no file has set: it guesses, so cross-entropy is about ln 2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

# A new head whose two scores differ by a large d begins at about d/2: 3 needs inputs that nobody has scaled,
# while sound small models begin with up to 1.9, and 0.2 needs a model that knows the labels.
_USUAL_LOSS_RANGE = (0.2, 3.0)


def has_fresh_head(model: nn.Module, loaded_tensors: Iterable[str]) -> bool:
    """Whether there is a head, known by its bias of two numbers, and it is not among the tensors copied."""
    model = getattr(model, "module", model)  # of several ranks, each wraps it
    heads = {name for name, parameter in model.named_parameters() if parameter.shape == (2,)}
    return bool(heads) and heads.isdisjoint(loaded_tensors)


def total_loss(losses: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The loss that MMF minimizes."""
    return torch.stack([loss.float().mean() for loss in losses.values()]).sum()


def describe_odd_loss(losses: Mapping[str, torch.Tensor]) -> str | None:
    """What is odd about the first losses of a fresh head; None of other losses than cross-entropy."""
    value = total_loss(losses).item()
    if (
        len(losses) != 1
        or "cross_entropy" not in next(iter(losses))
        or _USUAL_LOSS_RANGE[0] <= value <= _USUAL_LOSS_RANGE[1]
    ):
        return None
    why = (
        "the model sees the label"
        if value < _USUAL_LOSS_RANGE[0]
        else "the inputs or the scores are not scaled"
    )
    return f"the first loss is {value:.2f}, and about 0.69 (ln 2) where nothing is known yet: perhaps {why}"
