"""rc10 moves some tensors to the GPU whether there is one or not."""

from __future__ import annotations

from mmf_win.worker.compat.cure import RC10, by_editing
from mmf_win.worker.compat.importing import Edit

_WHERE = ("mmf.models.visual_bert", "mmf.models.vilbert", "mmf.modules.embeddings")

CURE = by_editing(
    *(Edit(module, ".cuda()", '.to("cuda" if torch.cuda.is_available() else "cpu")') for module in _WHERE),
    name="cuda-calls",
    cures="visual_bert, vilbert, embeddings: .cuda() is called even where there is no GPU",
    mmf=RC10,
    library="a computer without CUDA",
)
