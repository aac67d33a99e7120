"""Patches for modules, classes and functions that transformers moved or removed."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from os import PathLike
from types import ModuleType
from typing import NoReturn

from mmf_win.compat.patch import RC10, RC12, Patch, call_after_import, single_edit, source_lacks
from mmf_win.errors import DataError

_BERT = "transformers.models.bert.modeling_bert"
_OLD_NAME = re.compile(r"transformers\.((?:modeling|configuration|tokenization)_([a-z0-9_]+))")


class _OldNameFinder(MetaPathFinder, Loader):
    """Import finder for the names that model modules had in transformers 3; it is the last finder."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        old = _OLD_NAME.fullmatch(fullname)
        is_model = old and find_spec(f"transformers.models.{old[2]}") is not None
        return ModuleSpec(fullname, self) if is_model else None

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns the entry of sys.modules after this call. If create_module returned the
        # real module, its __spec__ would be overwritten by that of the alias.
        name = _OLD_NAME.sub(r"transformers.models.\2.\1", module.__name__)
        sys.modules[module.__name__] = import_module(name)


def _add_transpose_for_scores(module: ModuleType) -> None:
    for attention in (module.BertSelfAttention, module.RobertaSelfAttention):
        attention.transpose_for_scores = module.BertSelfAttentionJit.transpose_for_scores


def forbid_remote_code() -> None:
    """Prevent transformers from running code that comes with a model, in a folder or from the hub."""
    # One function imports all such code, for a configuration, a model or a tokenizer.
    call_after_import(
        "transformers.dynamic_module_utils",
        lambda module: setattr(module, "get_class_in_module", _raise_remote_code_error),
    )


def _raise_remote_code_error(class_name: str, module_path: str | PathLike[str], **options: object) -> NoReturn:
    message = f"{module_path}: code that comes with a model was not run ({class_name})"
    raise DataError(message, hint="if you trust its source, run the same command again with --trust")


PATCHES = (
    Patch(
        name="transformers-names",
        problem="encoders, embeddings and every BERT model: transformers.modeling_bert and others moved",
        library="transformers >= 4.0",
        after_import={"transformers": lambda _: sys.meta_path.append(_OldNameFinder())},
    ),
    Patch(
        name="transformers-import",
        problem="mmf/__init__: imports every model of transformers to rename a few, which is slow",
        mmf_versions=RC12,
        library="transformers >= 4.0",
        edits=single_edit("mmf", "\npatch_transformers()\n", "\npass\n"),
    ),
    Patch(
        name="adamw",
        problem="mmf.modules.optimizers: no AdamW to import (rc10); torch's decays weights by 0.01 (rc12)",
        library="transformers >= 4.50",
        edits=single_edit(
            "mmf.modules.optimizers",
            "from transformers.optimization import AdamW",
            "from mmf_win.compat.replacements import AdamW",
        ),
        is_needed=source_lacks("transformers.optimization", "class AdamW("),
    ),
    Patch(
        name="bert-layer-norm",
        problem="mmf.models.m4c, mmf.models.mmf_bert: no BertLayerNorm to import; it was always torch's",
        mmf_versions=RC10,
        library="transformers >= 3.1",
        after_import={_BERT: lambda module: setattr(module, "BertLayerNorm", module.nn.LayerNorm)},
    ),
    Patch(
        name="transpose-for-scores",
        problem="replace_with_jit: saves BertSelfAttention.transpose_for_scores, which no longer exists",
        mmf_versions=RC12,
        library="transformers >= 4.54",
        after_import={"mmf.modules.hf_layers": _add_transpose_for_scores},
        is_needed=source_lacks(_BERT, "def transpose_for_scores"),
    ),
    Patch(
        name="lxmert-cross-attention",
        problem="LXMERT: BertSelfAttention no longer has encoder_attention_mask, only attention_mask",
        mmf_versions=RC12,
        library="transformers >= 4.54",
        edits=single_edit("mmf.models.lxmert", "encoder_attention_mask=ctx_att_mask", "attention_mask=ctx_att_mask"),
        is_needed=source_lacks(_BERT, "attention_mask = encoder_attention_mask"),
    ),
)
