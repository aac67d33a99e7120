"""A trained model as ONNX: bytes of an image, tokens and region features in, probabilities out.

Beside ``model.onnx`` there is what makes its inputs: ``tokenizer.json`` for the library tokenizers, where the model
reads text, and ``graph.json``, whose ``text`` says how token ids become a row: ``cls``, at most ``max_length`` - 2
of them, ``sep``, then ``pad`` where the mask is 0. Rows of a batch are as long as the longest and one more, at
most ``max_length`` (``padding`` is "one"), or all have that length ("all").
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from mmf.common.sample import SampleList
from torch import Tensor, nn

from mmf_win.errors import UsageError
from mmf_win.files import write_bytes, write_json
from mmf_win.integrity.digest import file_digest
from mmf_win.protocol import Attempt
from mmf_win.worker.hooks.fast import why_padded
from mmf_win.worker.pillow_resize import PillowResize

_OPSET = 20
_CLASSES = ["not hateful", "hateful"]
_OPERATION = re.compile(r"OpOverload\(op='([\w.]+)'")
_ROWS = 3  # of the example, of which the exporter takes no size for a constant
_TOKENS = 9  # of the example, likewise


class Scores(nn.Module):
    """MMF's model behind plain tensors, all with a row for each meme.

    Args:
        model: MMF's, on the CPU.
        resize: makes of ``image`` and ``size`` what the model takes; None if it takes no images.
    """

    def __init__(self, model: nn.Module, resize: PillowResize | None) -> None:
        super().__init__()
        self.model, self.resize = model, resize

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Probabilities of the classes, float32 [batch, classes]."""
        batch = SampleList()
        batch.dataset_name, batch.dataset_type = "hateful_memes", "test"
        if self.resize is not None:
            batch.image = self.resize(inputs["image"], inputs["size"])
        if "input_ids" in inputs:
            batch.input_ids, batch.input_mask = inputs["input_ids"], inputs["input_mask"]
            batch.segment_ids = torch.zeros_like(inputs["input_ids"])  # one text is one segment
        if "features" in inputs:
            batch.image_feature_0 = inputs["features"]
            batch.image_info_0 = SampleList()
            batch.image_info_0.max_features = inputs["max_features"]
            batch.image_info_0.bbox = location(inputs["boxes"], inputs["image_size"])
        # Not of the object, which may score a batch in parts.
        return type(self.model).forward(self.model, batch)["scores"].softmax(1)


def location(boxes: Tensor, image_size: Tensor) -> Tensor:
    """What ViLBERT knows of regions: corners and area relative to their image, [batch, boxes, 5].

    ``boxes`` are pixels (x1, y1, x2, y2), ``image_size`` [batch, 2] is (height, width). 1.0.0rc10 computes it
    by numpy, which an exporter takes for constants.
    """
    height, width = image_size[:, None, 0], image_size[:, None, 1]
    x1, y1, x2, y2 = boxes.unbind(-1)
    area = (y2 - y1) * (x2 - x1) / (width * height)
    return torch.stack([x1 / width, y1 / height, x2 / width, y2 / height, area], -1)


def _of_vilbert(batch: SampleList) -> dict[str, Any]:
    info = batch.image_info_0
    return {
        "input_ids": batch.input_ids,
        "attention_mask": batch.input_mask,
        "token_type_ids": batch.segment_ids,
        "image_dim": info.max_features,
        "image_feature": batch.image_feature_0,
        "image_location": info.bbox,
        "image_target": None,
        "image_label": None,
    }


def export(trainer: Any, request: Attempt) -> None:
    """Write the model that MMF's trainer has predicted with to the folder ``request.export``.

    Raises UsageError where the model, or what prepares its inputs, cannot be exported.
    """
    assert request.export is not None and request.checkpoint is not None
    began, folder = time.monotonic(), Path(request.export)
    dataset = _dataset(trainer)
    model = getattr(trainer.model, "module", trainer.model).cpu().float().eval()
    if hasattr(model, "get_image_and_text_features"):
        model.get_image_and_text_features = _of_vilbert
    row = dataset[0]
    resize = PillowResize(_transforms(dataset)) if "image" in row else None
    padding = "one" if why_padded(request) is None else "all"
    program = _program(request.model, Scores(model, resize), *_example(row, padding))
    inputs = program.model.graph.inputs
    for unused in [value for value in inputs if not value.uses()]:
        inputs.remove(unused)
    program.model.metadata_props["classes"] = json.dumps(_CLASSES)
    program.save(str(folder / "model.onnx"))
    names = {value.name for value in inputs}
    features = row.image_feature_0 if "features" in names else None
    write_json(
        folder / "graph.json",
        {
            "inputs": [_about(value) for value in inputs],
            "text": _text(dataset.text_processor, padding, folder) if "input_ids" in names else None,
            "image": "image" in names,
            "features": None if features is None else {"boxes": features.shape[0], "dim": features.shape[1]},
            "classes": _CLASSES,
            "opset": _OPSET,
            "checkpoint_sha256": file_digest(Path(request.checkpoint)).hex(),
            "versions": {name: version(name) for name in ("torch", "transformers", "onnx", "onnxscript")},
        },
    )
    request.write_event("exported", seconds=round(time.monotonic() - began, 1))


def _about(value: Any) -> dict[str, Any]:
    """An input; an axis that may have any length is null."""
    shape = [length if isinstance(length, int) else None for length in value.shape]
    return {"name": value.name, "dtype": value.dtype.numpy().name, "shape": shape}


def _dataset(trainer: Any) -> Any:
    loaders = trainer.test_loader.loaders
    return next(iter(loaders.values() if isinstance(loaders, Mapping) else loaders)).dataset


def _transforms(dataset: Any) -> list[Any]:
    processor = getattr(dataset.image_processor, "processor", dataset.image_processor)
    if type(processor).__name__ != "TorchvisionTransforms":
        raise UsageError(f"the image processor {type(processor).__name__} cannot be exported")
    return list(processor.transform.transforms)


def _text(text_processor: Any, padding: str, folder: Path) -> dict[str, Any]:
    """Write the tokenizer to ``tokenizer.json``, and tell how its ids become a row."""
    processor = getattr(text_processor, "processor", text_processor)
    if type(processor).__name__ != "BertTokenizer":
        raise UsageError(f"the text processor {type(processor).__name__} cannot be exported")
    tokenizer = processor._tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        from transformers.convert_slow_tokenizer import convert_slow_tokenizer

        backend = convert_slow_tokenizer(tokenizer)
    backend.no_truncation()
    backend.no_padding()
    write_bytes(folder / "tokenizer.json", backend.to_str().encode())
    cls, sep = tokenizer.convert_tokens_to_ids([processor._CLS_TOKEN, processor._SEP_TOKEN])
    length = processor._max_seq_length
    return {"form": "bert", "max_length": length, "cls": cls, "sep": sep, "pad": 0, "padding": padding}


def _example(row: Any, padding: str) -> tuple[dict[str, Tensor], dict[str, dict[int, Any]]]:
    """Inputs of the shapes that a row of the dataset has, and which of their axes may have another length."""
    varies = torch.export.Dim.DYNAMIC
    inputs: dict[str, Tensor] = {}
    axes: dict[str, dict[int, Any]] = {}
    if "image" in row:
        inputs["image"] = torch.zeros(_ROWS, 52, 46, 3, dtype=torch.uint8)
        inputs["size"] = torch.tensor([[52, 46], [40, 44], [50, 46]])
        axes["image"] = {1: varies, 2: varies}
    if "input_ids" in row:
        length = len(row.input_ids) if padding == "all" else _TOKENS
        for name in ("input_ids", "input_mask"):
            inputs[name] = torch.ones(_ROWS, length, dtype=torch.long)
            axes[name] = {} if padding == "all" else {1: varies}
    if "image_feature_0" in row:
        boxes = len(row.image_feature_0)
        inputs["features"] = torch.zeros(_ROWS, *row.image_feature_0.shape)
        inputs["boxes"] = torch.zeros(_ROWS, boxes, 4)
        inputs["image_size"] = torch.ones(_ROWS, 2)
        inputs["max_features"] = torch.full((_ROWS,), boxes)
    return inputs, {name: {0: varies, **axes.get(name, {})} for name in inputs}


def _program(name: str, model: Scores, inputs: dict[str, Tensor], axes: dict[str, dict[int, Any]]) -> Any:
    """torch's ONNX program of a model; UsageError where it can be none."""
    try:
        with torch.no_grad():
            shape = tuple(model(inputs).shape)
            if shape != (_ROWS, len(_CLASSES)):
                raise UsageError(f"{name} cannot be exported: it gives {shape[1:]} scores instead of two")
            return torch.onnx.export(
                model,
                kwargs={"inputs": inputs},
                dynamic_shapes={"inputs": axes},
                input_names=list(inputs),
                output_names=["probabilities"],
                opset_version=_OPSET,
                dynamo=True,
            )
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        found = _OPERATION.search(f"{error} {cause}")
        why = (
            f"ONNX has no {found[1]}"
            if found
            else f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}"
        )
        raise UsageError(f"{name} cannot be exported: {why}") from error
