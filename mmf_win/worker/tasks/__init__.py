"""Other tasks of the worker than training and prediction: check a model, export it, serve it."""
