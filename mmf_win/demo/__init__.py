"""Synthetic dataset and models of ``mmfw demo``."""
