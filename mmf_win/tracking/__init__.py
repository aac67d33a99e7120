"""Sends what becomes of runs to MLflow, ClearML or Weights & Biases; a training knows nothing of it."""

from typing import Literal

RUN_IDS = {"mlflow": "MLFLOW_RUN_ID", "clearml": "CLEARML_TASK_ID", "wandb": "WANDB_RUN_ID"}
"""Variables that name the run to use there, where a command sends exactly one."""
TRACKERS = tuple(RUN_IDS)
Models = Literal["best", "last", "none"]
"""Which checkpoint is sent."""
