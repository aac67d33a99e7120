"""MMF imports transformers' models where they stood before version 4."""

from __future__ import annotations

import re

from mmf_win.worker.compat import importing
from mmf_win.worker.compat.cure import BOTH, RC12, Context, Cure, by_editing
from mmf_win.worker.compat.importing import Edit

_OLD = re.compile(r"transformers\.(?:modeling|configuration|tokenization)_([a-z0-9_]+)")


def target_of(name: str) -> str | None:
    """Where the module of that old name stands now; None for names of another kind."""
    match = _OLD.fullmatch(name)
    if match is None:
        return None
    target = name.replace("transformers.", f"transformers.models.{match[1]}.")
    return target if importing.source_path(target) else None


def _needed(context: Context) -> bool:
    return importing.source_path("transformers.modeling_bert") is None


CURE = Cure(
    name="transformers-names",
    cures="encoders, embeddings and every BERT model: transformers.modeling_bert and its like moved",
    mmf=BOTH,
    library="transformers >= 4.0",
    needed=_needed,
    apply=lambda context: importing.alias(target_of),
)

WHOLESALE = by_editing(
    Edit("mmf", "\npatch_transformers()\n", "\npass\n"),
    name="transformers-import",
    cures="mmf/__init__: imports every model of transformers to give a few their old names, which takes long",
    mmf=RC12,
    library="transformers >= 4.0",
)
