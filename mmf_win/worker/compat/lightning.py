"""rc12 inherits from PyTorch Lightning's classes even when its own trainer trains."""

from __future__ import annotations

from mmf_win.worker.compat.cure import RC12, by_editing, missing
from mmf_win.worker.compat.importing import Edit

_WHERE = (
    "mmf.common.test_reporter",
    "mmf.datasets.base_dataset_builder",
    "mmf.datasets.multi_datamodule",
    "mmf.models.base_model",
    "mmf.utils.build",
    "mmf.common.registry",
)

CURE = by_editing(
    *(
        Edit(
            module,
            "import pytorch_lightning as pl",
            "from mmf_win.worker.compat.stand_ins import lightning as pl",
        )
        for module in _WHERE
    ),
    name="lightning",
    cures="base_model, base_dataset_builder and others: import pytorch_lightning to inherit from two classes",
    mmf=RC12,
    library="pytorch_lightning not installed",
    when=missing("pytorch_lightning"),
)
