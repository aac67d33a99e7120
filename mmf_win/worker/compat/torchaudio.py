"""rc12 looks for its own image transforms in torchaudio first."""

from __future__ import annotations

from mmf_win.worker.compat.cure import RC12, by_editing, missing
from mmf_win.worker.compat.importing import Edit

CURE = by_editing(
    Edit(
        "mmf.datasets.processors.image_processors",
        "from torchaudio import transforms as torchaudio_transforms",
        "torchaudio_transforms = None",
    ),
    name="torchaudio",
    cures="TorchvisionTransforms: imports torchaudio to look for GrayScaleTo3Channels, which is MMF's own",
    mmf=RC12,
    library="torchaudio not installed",
    when=missing("torchaudio"),
)
