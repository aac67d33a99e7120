"""The names of metrics, and the series of numbers that updates and validations make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "hateful_memes/"
_MMFW_NAMES = {"roc_auc": "auroc", "total_loss": "loss"}  # from MMF's names
_UPDATE_METRICS = ("loss", "lr", "epoch", "updates_per_s", "max_mem_mib")


def rename_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with MMF's names, as ``hateful_memes/roc_auc``, under mmfw's; the latter stay."""
    short = {name.removeprefix(_PREFIX): value for name, value in metrics.items()}
    return {_MMFW_NAMES.get(name, name): value for name, value in short.items()}


def series_values(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that an event adds to series, by the names of these.

    They are ``train/loss`` and so on of an update, ``val/auroc`` of a validation, and ``best/auroc`` of the
    one after training.
    """
    kind = event["kind"]
    if kind not in ("train", "val"):
        return {}
    values = event if kind == "train" else event.get("metrics") or {}
    group = "best" if event.get("final") else kind
    names = _UPDATE_METRICS if kind == "train" else values
    return {f"{group}/{name}": float(values[name]) for name in names if is_number(values.get(name))}


def is_number(value: object) -> bool:
    """Return whether a value is a number that every tracker can keep."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e308
