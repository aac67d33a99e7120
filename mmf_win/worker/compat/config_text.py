"""rc10 writes its configuration beside a checkpoint with a method that OmegaConf dropped."""

from __future__ import annotations

from mmf_win.worker.compat.cure import RC10, by_editing
from mmf_win.worker.compat.importing import Edit

CURE = by_editing(
    Edit(
        "mmf.utils.checkpoint",
        "self.config.pretty(resolve=True)",
        "OmegaConf.to_yaml(self.config, resolve=True)",
    ),
    name="config-text",
    cures="Checkpoint.save_config: DictConfig.pretty is gone, OmegaConf.to_yaml does its work",
    mmf=RC10,
    library="omegaconf >= 2.1",
)
