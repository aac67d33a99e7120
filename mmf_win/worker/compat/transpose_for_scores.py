"""rc12 swaps methods of transformers' attention, one of which is gone."""

from __future__ import annotations

from types import ModuleType

from mmf_win.worker.compat import importing
from mmf_win.worker.compat.cure import RC12, Context, Cure

_MODULE = "mmf.modules.hf_layers"


def _add(module: ModuleType) -> None:
    method = module.BertSelfAttentionJit.transpose_for_scores
    for attention in (module.BertSelfAttention, module.RobertaSelfAttention):
        if not hasattr(attention, "transpose_for_scores"):
            attention.transpose_for_scores = method


def _needed(context: Context) -> bool:
    return "def transpose_for_scores" not in importing.source("transformers.models.bert.modeling_bert")


CURE = Cure(
    name="transpose-for-scores",
    cures="replace_with_jit: saves BertSelfAttention.transpose_for_scores, which no longer exists",
    mmf=RC12,
    library="transformers >= 4.48",
    needed=_needed,
    apply=lambda context: importing.after_import(_MODULE, _add),
)
