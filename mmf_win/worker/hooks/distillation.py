"""Distillation: a student learns from a teacher's probabilities beside the labels.

The loss is that of Hinton, Vinyals and Dean (arXiv 1503.02531) at temperature 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from mmf.common.registry import registry
from mmf.modules.losses import CrossEntropyLoss
from torch.nn.functional import cross_entropy


def register(teacher_probas: Mapping[str, float], weight: float) -> None:
    """Put a loss with a teacher in the place of MMF's ``cross_entropy``, whose name and parameters it keeps.

    Under its own name it reaches every model that names it, in lists and in heads, and the losses of
    validation, which have no teacher, keep the key that early stopping and curves know.

    Args:
        probas: id of a row → the teacher's probability of class 1, which must have every training row.
        weight: the teacher's share of the loss, from 0 to 1.
    """
    by_id = {int(row): proba for row, proba in teacher_probas.items()}

    @registry.register_loss("cross_entropy")
    class DistillationLoss(CrossEntropyLoss):  # type: ignore[misc]
        """``weight`` times the cross-entropy with the teacher's probabilities, and the rest with labels."""

        def forward(self, sample_list: Any, model_output: Any) -> torch.Tensor:
            """The mean over the rows; ``scores`` are rows × 2."""
            own: torch.Tensor = super().forward(sample_list, model_output)
            if sample_list["dataset_type"] != "train":
                return own
            scores = model_output["scores"].float()
            proba = scores.new_tensor([by_id[row] for row in sample_list["id"].tolist()])
            return weight * cross_entropy(scores, torch.stack([1 - proba, proba], 1)) + (1 - weight) * own
