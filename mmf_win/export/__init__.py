"""Export of a trained run to a folder that runs without PyTorch, MMF and mmfw."""
