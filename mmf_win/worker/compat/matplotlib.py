"""rc12 imports matplotlib on the way to every dataset, to draw boxes that a run never draws."""

from __future__ import annotations

from mmf_win.worker.compat.cure import RC12, by_editing, missing
from mmf_win.worker.compat.importing import Edit

CURE = by_editing(
    Edit(
        "mmf.utils.visualize",
        "from mmf.utils.features.visualizing_image import SingleImageViz",
        "from mmf_win.worker.compat.stand_ins.visualizing import SingleImageViz",
    ),
    name="matplotlib",
    cures="mmf.utils.visualize: every dataset imports it, and it imports matplotlib",
    mmf=RC12,
    library="matplotlib not installed",
    when=missing("matplotlib"),
)
