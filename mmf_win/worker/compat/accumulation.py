"""rc12's ``training.update_frequency`` divides the losses of an epoch's last update by zero."""

from __future__ import annotations

from mmf_win.worker.compat.cure import RC12, by_editing
from mmf_win.worker.compat.importing import Edit

_MODULE = "mmf.trainers.core.training_loop"

CURE = by_editing(
    # It ends the last update of an epoch at the first of its batches, and has none left for the others.
    Edit(
        _MODULE,
        "and num_remaining_batches != num_batches_for_this_update",
        "and idx % self.training_config.update_frequency + 1 != num_batches_for_this_update",
    ),
    # A run that goes on within an epoch has fewer batches left of it; see hooks/callback.py.
    Edit(
        _MODULE,
        "else len(self.train_loader)",
        'else getattr(self, "batches_left", self.train_loader.__len__)()',
    ),
    name="accumulation",
    cures="run_training_epoch: with training.update_frequency, an epoch's last update divides by zero",
    mmf=RC12,
    library="any",
)
