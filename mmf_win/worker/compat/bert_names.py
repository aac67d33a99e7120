"""rc12 takes a model for a BERT only if its name starts with ``bert-``, so never one in a folder."""

from __future__ import annotations

import json
from pathlib import Path

from mmf_win.worker.compat.cure import RC12, by_editing
from mmf_win.worker.compat.importing import Edit


def is_bert(name: str) -> bool:
    """Whether a model's name, or the folder that holds one in transformers' format, means a BERT."""
    config = Path(name, "config.json")
    if config.is_file():
        return bool(json.loads(config.read_text(encoding="utf-8")).get("model_type") == "bert")
    return name.startswith("bert-")


CURE = by_editing(
    Edit(
        "mmf.modules.encoders",
        'self.config.bert_model_name.startswith("bert-")',
        "is_bert(self.config.bert_model_name)",
        {"is_bert": is_bert},
    ),
    name="bert-names",
    cures="TransformerEncoder: a BERT in a folder is loaded as something else, which the fusions cannot use",
    mmf=RC12,
    library="any",
)
