"""torchtext is gone, and it would download word vectors without asking."""

from __future__ import annotations

from mmf_win.worker.compat.cure import BOTH, by_editing
from mmf_win.worker.compat.importing import Edit

CURE = by_editing(
    Edit(
        "mmf.utils.vocab", "from torchtext import vocab", "from mmf_win.worker.compat.stand_ins import vocab"
    ),
    name="glove",
    cures="mmf.utils.vocab: imports torchtext, which torch left behind, and which downloads 2 GB of GloVe",
    mmf=BOTH,
    library="torchtext",
)
