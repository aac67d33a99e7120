"""transformers dropped its AdamW, and torch's decays weights by default."""

from __future__ import annotations

from mmf_win.worker.compat import importing
from mmf_win.worker.compat.cure import BOTH, by_editing
from mmf_win.worker.compat.importing import Edit

CURE = by_editing(
    Edit(
        "mmf.modules.optimizers",
        "from transformers.optimization import AdamW",
        "from mmf_win.worker.compat.stand_ins.adamw import AdamW",
    ),
    name="adamw",
    cures="mmf.modules.optimizers: the import fails (rc10), or torch's AdamW silently decays by 0.01 (rc12)",
    mmf=BOTH,
    library="transformers >= 4.50",
    when=lambda: "class AdamW(" not in importing.source("transformers.optimization"),
)
