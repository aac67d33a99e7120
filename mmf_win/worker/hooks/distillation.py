"""Knowledge distillation: a student learns from a teacher's probabilities in addition to the labels.

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
    """Replace MMF's loss ``cross_entropy`` with one that also learns from a teacher; its name and parameters stay.

    With the same name, it applies to every model that uses the loss, in lists and in heads. Validation losses
    have no teacher and keep the key that early stopping and curves use.

    Args:
        teacher_probas: The teacher's probability of class 1 by row ID; every training row is required.
        weight: The teacher's share of the loss, from 0 to 1.
    """
    proba_by_id = {int(row): proba for row, proba in teacher_probas.items()}

    @registry.register_loss("cross_entropy")
    class DistillationLoss(CrossEntropyLoss):  # type: ignore[misc]
        """Weighted mean of the cross-entropy with the teacher's probabilities and with the labels."""

        def forward(self, sample_list: Any, model_output: Any) -> torch.Tensor:
            """Return the mean loss of all rows; ``scores`` has the shape [rows, 2]."""
            label_loss: torch.Tensor = super().forward(sample_list, model_output)
            if sample_list["dataset_type"] != "train":
                return label_loss
            scores = model_output["scores"].float()
            proba = scores.new_tensor([proba_by_id[row] for row in sample_list["id"].tolist()])
            teacher_loss = cross_entropy(scores, torch.stack([1 - proba, proba], 1))
            return weight * teacher_loss + (1 - weight) * label_loss
