"""Sends what becomes of runs to MLflow, ClearML or Weights & Biases; a training knows nothing of it."""
