"""Evaluation of runs: predictions, ensembles, metrics and report pages."""
