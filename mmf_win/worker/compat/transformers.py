"""Patches for what transformers moved or removed."""

from __future__ import annotations

import re
from types import ModuleType

from mmf_win.worker.compat import importing
from mmf_win.worker.compat.importing import Edit
from mmf_win.worker.compat.patch import RC10, RC12, Patch, lacks

_BERT = "transformers.models.bert.modeling_bert"
_OLD_NAME = re.compile(r"transformers\.(?:modeling|configuration|tokenization)_([a-z0-9_]+)")


def target_of(name: str) -> str | None:
    """The present name of the module with that old name; None for names of another kind."""
    match = _OLD_NAME.fullmatch(name)
    if match is None:
        return None
    target = name.replace("transformers.", f"transformers.models.{match[1]}.")
    return target if importing.source_path(target) else None


def _add_layer_norm(module: ModuleType) -> None:
    from torch.nn import LayerNorm

    vars(module).setdefault("BertLayerNorm", LayerNorm)


def _add_transpose_for_scores(module: ModuleType) -> None:
    method = module.BertSelfAttentionJit.transpose_for_scores
    for attention in (module.BertSelfAttention, module.RobertaSelfAttention):
        if not hasattr(attention, "transpose_for_scores"):
            attention.transpose_for_scores = method


PATCHES = (
    Patch(
        name="transformers-names",
        problem="encoders, embeddings and every BERT model: transformers.modeling_bert and its like moved",
        library="transformers >= 4.0",
        before_import=lambda: importing.alias(target_of),
    ),
    Patch(
        name="transformers-import",
        problem="mmf/__init__: imports every model of transformers to rename a few, which takes long",
        mmf=RC12,
        library="transformers >= 4.0",
        edits=(Edit("mmf", "\npatch_transformers()\n", "\npass\n"),),
    ),
    Patch(
        name="adamw",
        problem="mmf.modules.optimizers: no AdamW to import (rc10); torch's decays weights by 0.01 (rc12)",
        library="transformers >= 4.50",
        edits=(
            Edit(
                "mmf.modules.optimizers",
                "from transformers.optimization import AdamW",
                "from mmf_win.worker.compat.stand_ins import AdamW",
            ),
        ),
        needed=lacks("transformers.optimization", "class AdamW("),
    ),
    Patch(
        name="bert-layer-norm",
        problem="mmf.models.m4c, mmf.models.mmf_bert: no BertLayerNorm to import; it always was torch's own",
        mmf=RC10,
        library="transformers >= 3.1",
        after_import={_BERT: _add_layer_norm},
        needed=lacks(_BERT, "BertLayerNorm"),
    ),
    Patch(
        name="transpose-for-scores",
        problem="replace_with_jit: saves BertSelfAttention.transpose_for_scores, which no longer exists",
        mmf=RC12,
        library="transformers >= 4.54",
        after_import={"mmf.modules.hf_layers": _add_transpose_for_scores},
        needed=lacks(_BERT, "def transpose_for_scores"),
    ),
)
