"""Batches of one or two rows, as the last one of an epoch may be, lose their first dimension."""

from __future__ import annotations

from mmf_win.worker.compat.cure import BOTH, by_editing
from mmf_win.worker.compat.importing import Edit

CURE = by_editing(
    Edit("mmf.modules.encoders", "return x.squeeze()", "return x.squeeze(tuple(range(1, x.dim())))"),
    # A pair of (sequence, pooled) is told from a tensor of two rows by its length alone.
    Edit("mmf.models.fusions", "if len(text) == 2:", "if len(text) == 2 and not torch.is_tensor(text):"),
    Edit("mmf.models.unimodal", "if len(x) == 2:", "if len(x) == 2 and not torch.is_tensor(x):"),
    name="batch-of-one",
    cures="TextEmbeddingEncoder: fails on one row; FusionBase, UnimodalBase (rc10): take one of two rows",
    mmf=BOTH,
    library="any",
)
