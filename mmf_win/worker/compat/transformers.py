"""Patches for what transformers moved or removed."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from mmf_win.worker.compat.patch import RC10, RC12, Edit, Patch, lacks

_BERT = "transformers.models.bert.modeling_bert"
# What MMF imports of transformers by the names of its version 3.
_MOVED = ("configuration_auto", "modeling_auto", "tokenization_auto", "configuration_bert", "modeling_bert")


class _Moved(ModuleType):
    """In the place of a module that moved, which is imported when something of it is needed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # whoever looks through sys.modules asks for these
            raise AttributeError(name)
        module = self.__name__.rpartition(".")[2]
        return getattr(import_module(f"transformers.models.{module.partition('_')[2]}.{module}"), name)


def _give_old_names() -> None:
    for module in _MOVED:
        name = f"transformers.{module}"
        sys.modules[name] = _Moved(name)


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
        before_import=_give_old_names,
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
