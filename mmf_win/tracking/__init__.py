"""Sends what becomes of runs to MLflow, ClearML or Weights & Biases; a training knows nothing of it."""

from typing import Literal

TRACKERS = ("mlflow", "clearml", "wandb")
Models = Literal["best", "last", "none"]
"""Which checkpoint is sent."""
