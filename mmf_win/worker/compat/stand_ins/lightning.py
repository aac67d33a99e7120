"""For ``import pytorch_lightning as pl``: MMF's own trainer needs just two of its classes to inherit from."""

from __future__ import annotations

from typing import Any

import torch


class LightningModule(torch.nn.Module):
    """A plain module; MMF's models use nothing else of Lightning's unless Lightning trains them."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called by Lightning's trainer only."""


class LightningDataModule:
    """MMF's dataset builders inherit it to be usable by Lightning's trainer."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()
