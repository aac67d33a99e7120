"""Upload of runs to MLflow, ClearML and Weights & Biases, without effect on the training."""
