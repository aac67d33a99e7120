"""A guard against a checkpoint that leaves weights unset.

MMF loads with ``strict=False`` and goes on whatever is missing, so a model with a random head is evaluated
as if it had been trained.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from mmf_win.worker.outcome import WeightsMissing


def guard(model: nn.Module) -> None:
    """Make ``model.load_state_dict`` raise :class:`WeightsMissing` when it leaves a parameter unset."""
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
