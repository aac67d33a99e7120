"""Patches: what an unmodified MMF needs to import and run on today's Python, torch and transformers.

Each module has the patches for one thing that changed, or is wrong in MMF, in its ``PATCHES``;
``replacements`` has classes in the place of those of packages that are gone. MMF's files stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from mmf_win.compat import (
    dataloader,
    distributed,
    lazy_imports,
    mmf_data,
    mmf_imports,
    mmf_models,
    omegaconf,
    torch,
    transformers,
)
from mmf_win.compat.patch import Patch, install_finder
from mmf_win.upstream.versions import read_version

# late comes first, since another one imports torch.
_PATCH_MODULES = (
    lazy_imports,
    torch,
    dataloader,
    transformers,
    omegaconf,
    mmf_imports,
    mmf_models,
    mmf_data,
    distributed,
)
#: All patches, in the order in which they are applied.
PATCHES: tuple[Patch, ...] = tuple(patch for module in _PATCH_MODULES for patch in module.PATCHES)

#: Those without which MMF fails, for comparisons with MMF alone.
REQUIRED_PATCHES = tuple(patch for patch in PATCHES if not patch.is_optimization)


def install(mmf_root: Path, patches: Sequence[Patch] = PATCHES) -> None:
    """Make ``import mmf`` find the MMF in ``mmf_root`` and work, in a process that has not imported it."""
    if "mmf" in sys.modules:
        raise RuntimeError("patches must be installed before mmf is imported")
    root, version = mmf_root.resolve(), read_version(mmf_root)
    sys.path.insert(0, str(root))
    install_finder()
    for patch in patches:
        if patch.is_active(root, version):
            patch.apply(root)
