"""Names of metrics, and the series of values from training updates and validations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "hateful_memes/"
_MMFW_NAMES = {"roc_auc": "auroc", "total_loss": "loss"}  # from MMF's names
_UPDATE_METRICS = ("loss", "lr", "epoch", "updates_per_s", "max_mem_mib")


def rename_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Rename metrics from MMF's names, such as ``hateful_memes/roc_auc``, to mmfw's; others are kept."""
    short = {name.removeprefix(_PREFIX): value for name, value in metrics.items()}
    return {_MMFW_NAMES.get(name, name): value for name, value in short.items()}


def series_values(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that an event adds to series, by the names of the series.

    The names are ``train/loss`` and others for an update, ``val/auroc`` and others for a validation, and
    ``best/auroc`` and others for the validation after training.
    """
    kind = event["kind"]
    if kind not in ("train", "val"):
        return {}
    values = event if kind == "train" else event.get("metrics") or {}
    group = "best" if event.get("final") else kind
    names = _UPDATE_METRICS if kind == "train" else values
    return {f"{group}/{name}": float(values[name]) for name in names if is_number(values.get(name))}


def is_number(value: object) -> bool:
    """Return whether a value is a number that every tracker can store."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e308
