"""rc10's logger asks for an abstract class where Python no longer keeps it."""

from __future__ import annotations

import collections

from mmf_win.worker.compat.cure import RC10, by_editing
from mmf_win.worker.compat.importing import Edit

CURE = by_editing(
    Edit("mmf.utils.logger", "collections.Mapping", "collections.abc.Mapping"),
    name="logger-mapping",
    cures="Logger.log_progress: collections.Mapping moved to collections.abc",
    mmf=RC10,
    library="Python >= 3.10",
    when=lambda: not hasattr(collections, "Mapping"),
)
