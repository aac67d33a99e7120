"""A torchvision built for CUDA beside a torch for CPUs cannot load its operators, and then not itself."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from mmf_win.worker.compat import importing
from mmf_win.worker.compat.cure import BOTH, Context, Cure

_MODULE = "torchvision._meta_registrations"


def _operators_load() -> bool:
    import torch

    package = importing.source_path("torchvision")
    if package is None:
        return True
    # The very call with which torchvision.extension loads them; once loaded, a second time is nothing.
    library = next(filter(Path.is_file, (package.with_name("_C" + s) for s in EXTENSION_SUFFIXES)), None)
    if library is None:
        return False
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return True


def _needed(context: Context) -> bool:
    if importing.source_path(_MODULE) is None or find_spec("torch") is None:
        return False
    return not _operators_load()


def _apply(context: Context) -> None:
    # Only tells torch.compile the shapes of operators that are not there. Models and transforms need none.
    sys.modules[_MODULE] = ModuleType(_MODULE)


CURE = Cure(
    name="torchvision-operators",
    cures="import torchvision: operator torchvision::nms does not exist",
    mmf=BOTH,
    library="torchvision for another torch",
    needed=_needed,
    apply=_apply,
)
