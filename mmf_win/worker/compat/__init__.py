"""What an unmodified MMF needs to import and run on today's Python, torch and transformers.

Each module beside this one holds a cure: what breaks, where, for which MMF and which library, a test of
whether it is needed here, and the change. :func:`install` applies those that are needed, before MMF is
imported; MMF's files stay as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mmf_win.worker.compat import (
    accumulation,
    adamw,
    annotation_files,
    anomaly,
    batch_of_one,
    bert_layer_norm,
    bert_names,
    config_text,
    csv_report,
    cuda_calls,
    data_elsewhere,
    demjson,
    env_resolver,
    glove,
    image_errors,
    image_paths,
    importing,
    lightning,
    list_items,
    lmdb_handles,
    logger_isatty,
    logger_mapping,
    matplotlib,
    missing_keys,
    setup_imports,
    text_symlinks,
    tied_weights,
    timer,
    torchaudio,
    torchvision_ops,
    transformers_names,
    transpose_for_scores,
)
from mmf_win.worker.compat.cure import Context, Cure
from mmf_win.worker.compat.setup_imports import import_everything

__all__ = ["CURES", "Context", "Cure", "anomaly", "import_everything", "install", "survey"]

CURES: tuple[Cure, ...] = (
    torchvision_ops.CURE,
    transformers_names.CURE,
    transformers_names.WHOLESALE,
    setup_imports.CURE,
    text_symlinks.CURE,
    demjson.CURE,
    glove.CURE,
    lightning.CURE,
    matplotlib.CURE,
    torchaudio.CURE,
    adamw.CURE,
    bert_layer_norm.CURE,
    bert_names.CURE,
    transpose_for_scores.CURE,
    tied_weights.CURE,
    env_resolver.CURE,
    missing_keys.CURE,
    config_text.CURE,
    list_items.CURE,
    logger_mapping.CURE,
    logger_isatty.CURE,
    anomaly.CURE,
    accumulation.CURE,
    batch_of_one.CURE,
    cuda_calls.CURE,
    data_elsewhere.CURE,
    lmdb_handles.CURE,
    annotation_files.CURE,
    image_paths.CURE,
    image_errors.CURE,
    timer.CURE,
    csv_report.CURE,
)
"""All cures, in the order in which they are applied."""

_installed: dict[Context, list[Cure]] = {}


def install(mmf_root: Path, mmf_version: str) -> list[Cure]:
    """Make ``import mmf`` find the MMF in ``mmf_root`` and work; again is nothing.

    Call it in every process that imports MMF, children of a ``spawn`` among them, before it does.

    Args:
        mmf_root: the folder that holds the packages ``mmf`` and ``mmf_cli``.
        mmf_version: as :func:`mmf_win.upstream.versions.read_version` reads it.

    Returns:
        the cures that are in force.

    Raises:
        RuntimeError: this process has imported MMF already, or uses another one.
    """
    context = Context(mmf_root.resolve(), mmf_version)
    if context in _installed:
        return _installed[context]
    if _installed or "mmf" in sys.modules:
        raise RuntimeError("cures must be installed once, before mmf is imported")
    cures = [cure for cure in CURES if cure.active(context)]
    sys.path.insert(0, str(context.mmf_root))
    importing.activate()
    for cure in cures:
        cure.apply(context)
    _installed[context] = cures
    return cures


def survey(mmf_root: Path, mmf_version: str) -> list[tuple[Cure, bool]]:
    """All cures, and whether each is needed for this MMF in this environment; changes nothing."""
    context = Context(mmf_root.resolve(), mmf_version)
    return [(cure, cure.active(context)) for cure in CURES]
