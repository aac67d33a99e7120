"""rc10's M4C and MMF BERT import a name that transformers dropped."""

from __future__ import annotations

from types import ModuleType

from mmf_win.worker.compat import importing
from mmf_win.worker.compat.cure import RC10, Context, Cure

_MODULE = "transformers.models.bert.modeling_bert"


def _add(module: ModuleType) -> None:
    from torch.nn import LayerNorm

    vars(module).setdefault("BertLayerNorm", LayerNorm)


def _needed(context: Context) -> bool:
    return "BertLayerNorm" not in importing.source(_MODULE)


CURE = Cure(
    name="bert-layer-norm",
    cures="mmf.models.m4c, mmf.models.mmf_bert: no BertLayerNorm to import; it always was torch's LayerNorm",
    mmf=RC10,
    library="transformers >= 3.1",
    needed=_needed,
    apply=lambda context: importing.after_import(_MODULE, _add),
)
