"""transformers 5 expects each model to have been told which of its weights are one and the same."""

from __future__ import annotations

from types import ModuleType

from mmf_win.worker.compat import importing
from mmf_win.worker.compat.cure import BOTH, Context, Cure

_MODULE = "transformers.modeling_utils"


def _add(module: ModuleType) -> None:
    # post_init sets it on each model that calls it; MMF's models were written before there was one.
    module.PreTrainedModel.all_tied_weights_keys = {}


def _needed(context: Context) -> bool:
    return "all_tied_weights_keys" in importing.source(_MODULE)


CURE = Cure(
    name="tied-weights",
    cures="visual_bert, vilbert: from_pretrained asks for all_tied_weights_keys, which post_init would set",
    mmf=BOTH,
    library="transformers >= 5",
    needed=_needed,
    apply=lambda context: importing.after_import(_MODULE, _add),
)
