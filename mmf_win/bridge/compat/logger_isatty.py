"""rc10 puts an object in the place of sys.stdout that cannot say whether it is a terminal."""

from __future__ import annotations

from types import ModuleType

from mmf_win.bridge.compat import importing
from mmf_win.bridge.compat.cure import RC10, Cure

_MODULE = "mmf.utils.logger"


def _never(self: object) -> bool:
    return False


def _add(module: ModuleType) -> None:
    module.StreamToLogger.isatty = _never


CURE = Cure(
    name="logger-isatty",
    cures="StreamToLogger, put in the place of stdout, has no isatty, which progress bars ask for",
    mmf=RC10,
    library="transformers >= 5",
    needed=lambda context: "def isatty" not in context.source(_MODULE),
    apply=lambda context: importing.after_import(_MODULE, _add),
)
