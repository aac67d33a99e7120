"""A trained run becomes a folder that runs without PyTorch, MMF and mmfw."""
