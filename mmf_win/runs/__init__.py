"""A run on disk: its folder, events, checkpoints and results."""
