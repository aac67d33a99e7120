"""Patches for torch, torchvision, torchaudio, torchtext and Lightning."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from mmf_win.compat.patch import RC10, RC12, Edit, Patch, single_edit

_META_REGISTRATIONS = "torchvision._meta_registrations"
_CUDA_CALLERS = ("mmf.models.visual_bert", "mmf.models.vilbert", "mmf.modules.embeddings")
_LIGHTNING_USERS = (
    "mmf.common.test_reporter",
    "mmf.datasets.base_dataset_builder",
    "mmf.datasets.multi_datamodule",
    "mmf.models.base_model",
    "mmf.utils.build",
    "mmf.common.registry",
)


def _is_torchvision_mismatched() -> bool:
    """Return whether torchvision was built for another torch, such as one with CUDA."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or find_spec("torch") is None:
        return False
    import torch

    # The same call as in torchvision.extension; a second call does nothing.
    files = (Path(spec.origin).with_name(f"_C{suffix}") for suffix in EXTENSION_SUFFIXES)
    library = next(filter(Path.is_file, files), None)
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError:
        return True
    return False


PATCHES = (
    Patch(
        name="torchvision-operators",
        problem="import torchvision: operator torchvision::nms does not exist",
        library="torchvision for another torch",
        # The module only tells torch.compile the shapes of the missing operators, which MMF does not need.
        after_import={"torch": lambda _: sys.modules.update({_META_REGISTRATIONS: ModuleType(_META_REGISTRATIONS)})},
        is_needed=_is_torchvision_mismatched,
    ),
    Patch(
        name="torchaudio",
        problem="TorchvisionTransforms: imports torchaudio to look up a transform that MMF itself has",
        mmf_versions=RC12,
        library="torchaudio",
        edits=single_edit(
            "mmf.datasets.processors.image_processors",
            "from torchaudio import transforms as torchaudio_transforms",
            "torchaudio_transforms = None",
        ),
    ),
    Patch(
        name="torchtext",
        problem="mmf.utils.vocab: imports torchtext, which is discontinued and downloads 2 GB of vectors",
        library="torchtext",
        edits=single_edit(
            "mmf.utils.vocab", "from torchtext import vocab", "from mmf_win.compat import replacements as vocab"
        ),
    ),
    Patch(
        name="lightning",
        problem="base_model, base_dataset_builder, ...: import pytorch_lightning to inherit from two classes",
        mmf_versions=RC12,
        library="pytorch_lightning",
        edits=tuple(
            Edit(module, "import pytorch_lightning as pl", "from mmf_win.compat import replacements as pl")
            for module in _LIGHTNING_USERS
        ),
    ),
    Patch(
        name="anomaly",
        problem="BaseTrainer.train: autograd's anomaly detection is always on, which is slow",
        mmf_versions=RC10,
        library="torch",
        edits=single_edit(
            "mmf.trainers.base_trainer",
            "torch.autograd.set_detect_anomaly(True)",
            # Key of 1.0.0rc12.
            'torch.autograd.set_detect_anomaly(self.training_config.get("detect_anomaly", False))',
        ),
        is_optimization=True,
    ),
    Patch(
        name="cuda-calls",
        problem="visual_bert, vilbert, embeddings: call .cuda() even without a GPU",
        mmf_versions=RC10,
        library="a computer without CUDA",
        edits=tuple(
            Edit(module, ".cuda()", '.to("cuda" if torch.cuda.is_available() else "cpu")') for module in _CUDA_CALLERS
        ),
    ),
)
