"""Patches that an unmodified MMF needs to run with current versions of Python, torch and transformers.

Each module defines in ``PATCHES`` the patches for one library or one part of MMF. ``replacements`` has
substitutes for classes of discontinued packages. MMF's files are not changed.
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

# lazy_imports comes first, since another module imports torch.
_MODULES = (lazy_imports, torch, dataloader, transformers, omegaconf, mmf_imports, mmf_models, mmf_data, distributed)
#: All patches in the order of their application.
PATCHES: tuple[Patch, ...] = tuple(patch for module in _MODULES for patch in module.PATCHES)

#: Patches without which MMF fails, for comparisons with MMF alone.
REQUIRED_PATCHES = tuple(patch for patch in PATCHES if not patch.is_optimization)


def install(mmf_root: Path, patches: Sequence[Patch] = PATCHES) -> None:
    """Prepare ``import mmf`` to import the MMF in ``mmf_root`` with its patches.

    Args:
        mmf_root: Folder with the package ``mmf``.
        patches: Patches to apply if they are needed.

    Raises:
        RuntimeError: MMF was already imported in this process.
    """
    if "mmf" in sys.modules:
        raise RuntimeError("patches must be installed before mmf is imported")
    root, version = mmf_root.resolve(), read_version(mmf_root)
    sys.path.insert(0, str(root))
    install_finder()
    for patch in patches:
        if patch.is_active(root, version):
            patch.apply(root)
