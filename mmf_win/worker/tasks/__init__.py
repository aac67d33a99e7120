"""Tasks of the worker beside training and prediction: check a model, export it, serve it."""
