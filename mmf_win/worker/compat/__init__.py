"""Patches: what an unmodified MMF needs to import and run on today's Python, torch and transformers.

Each module has the patches for one thing that changed, in its ``PATCHES``: ``transformers``, ``torch`` (with
torchvision, torchaudio, torchtext and Lightning), ``omegaconf``, ``python`` (with Windows). Patches for
mistakes of MMF's own are in ``mmf_data``, ``mmf_imports`` and ``mmf_models``. Classes that replace those of
packages that are gone are in ``stand_ins``. ``patch`` says what a patch consists of, and ``importing`` how it
changes a module. :func:`install` applies those that are needed, before MMF is imported; MMF's files stay as
they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mmf_win.worker.compat import (
    importing,
    mmf_data,
    mmf_imports,
    mmf_models,
    omegaconf,
    python,
    torch,
    transformers,
)
from mmf_win.worker.compat.patch import Context, Patch

PATCHES: tuple[Patch, ...] = (
    *torch.PATCHES,
    *transformers.PATCHES,
    *omegaconf.PATCHES,
    *python.PATCHES,
    *mmf_imports.PATCHES,
    *mmf_models.PATCHES,
    *mmf_data.PATCHES,
)
"""All patches, in the order in which they are applied."""

_installed: dict[Context, list[Patch]] = {}


def install(mmf_root: Path, mmf_version: str, *, detect_anomaly: bool = False) -> list[Patch]:
    """Make ``import mmf`` find the MMF in ``mmf_root`` and work. Idempotent.

    Call it in every process that imports MMF, children of a ``spawn`` among them, before it does.

    Args:
        mmf_root: the folder that holds the packages ``mmf`` and ``mmf_cli``.
        mmf_version: as :func:`mmf_win.upstream.versions.read_version` reads it.
        detect_anomaly: leave autograd's anomaly detection on where MMF always has it on.

    Returns:
        the patches that were applied.

    Raises:
        RuntimeError: this process has imported MMF already, or uses another one.
    """
    context = Context(mmf_root.resolve(), mmf_version, detect_anomaly)
    if context in _installed:
        return _installed[context]
    if _installed or "mmf" in sys.modules:
        raise RuntimeError("patches must be installed once, before mmf is imported")
    patches = [patch for patch in PATCHES if patch.active(context)]
    sys.path.insert(0, str(context.mmf_root))
    importing.activate()
    for patch in patches:
        patch.apply(context)
    _installed[context] = patches
    return patches


def survey(mmf_root: Path, mmf_version: str) -> list[tuple[Patch, bool]]:
    """All patches, and whether each is needed for this MMF in this environment; changes nothing."""
    context = Context(mmf_root.resolve(), mmf_version)
    return [(patch, patch.active(context)) for patch in PATCHES]
