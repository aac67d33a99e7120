"""rc10 puts an object in the place of sys.stdout that cannot say whether it is a terminal."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from mmf_win.worker.compat import importing
from mmf_win.worker.compat.cure import RC10, Context, Cure

_MODULE = "mmf.utils.logger"


def _never(self: object) -> bool:
    return False


def _add(module: ModuleType) -> None:
    module.StreamToLogger.isatty = _never


def _needed(context: Context) -> bool:
    try:
        asks = int(version("transformers").partition(".")[0]) >= 5
    except PackageNotFoundError:
        return False
    return asks and "def isatty" not in context.source(_MODULE)


CURE = Cure(
    name="logger-isatty",
    cures="StreamToLogger, put in the place of stdout, has no isatty, which progress bars ask for",
    mmf=RC10,
    library="transformers >= 5",
    needed=_needed,
    apply=lambda context: importing.after_import(_MODULE, _add),
)
