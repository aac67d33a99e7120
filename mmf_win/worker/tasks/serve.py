"""Server of predictions with the model that MMF has loaded, computed as MMF does."""

from __future__ import annotations

from typing import Any

import torch
from mmf.common.report import Report
from omegaconf import OmegaConf

from mmf_win.protocol import AttemptRequest
from mmf_win.protocol.serving import serve_predictions
from mmf_win.worker.prediction_progress import get_single_loader


def serve_model(trainer: Any, request: AttemptRequest) -> None:
    """Answer requests until the parent exits; their rows are passed to the dataset of MMF's trainer."""
    loader, model = get_single_loader(trainer.test_loader), trainer.model.eval()
    [dataset] = getattr(loader.dataset, "datasets", [loader.dataset])  # MMF concatenates several files
    annotations = dataset.annotation_db
    annotations.mmfw_file = None
    # mmfw applies its own precision inside the model.
    uses_mmf_fp16 = bool(OmegaConf.select(trainer.config, "training.fp16"))

    @torch.inference_mode()
    def predict(rows: list[dict[str, Any]]) -> list[float]:
        annotations.data = rows
        batch = loader.collate_fn([dataset[number] for number in range(len(rows))])
        batch = dataset.prepare_batch(batch).to(trainer.device)
        with torch.autocast("cuda", enabled=uses_mmf_fp16):
            report = Report(batch, model(batch))
        return [row["proba"] for row in dataset.format_for_prediction(report)]

    serve_predictions(request, predict)
