"""Export of a trained model as ONNX: image bytes, tokens and region features in, probabilities out.

The folder also contains ``model.json`` and, if the model reads text, ``tokenizer.json`` for the library
tokenizers. ``text`` in ``model.json`` defines how token IDs become a row: ``cls``, at most ``max_length`` - 2
IDs, ``sep``, and ``pad`` where the mask is 0. Rows are one token longer than the longest row of their batch,
but not longer than ``max_length``.
"""

from __future__ import annotations

import json
import re
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy
import torch
from mmf.common.sample import SampleList
from mmf.version import __version__ as mmf_version
from torch import Tensor, nn

from mmf_win.errors import UsageError
from mmf_win.files import write_bytes, write_json
from mmf_win.integrity.digest import file_digest
from mmf_win.protocol import AttemptRequest
from mmf_win.protocol.attempt import ExportTask
from mmf_win.version import __version__
from mmf_win.worker.hooks.checkpoint_io import replace_attribute, require_disk_space
from mmf_win.worker.pillow_resize import PillowResize
from mmf_win.worker.prediction_progress import get_single_loader

_OPSET = 20
_PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "tokenizers", "pillow")
_CLASSES = ["not hateful", "hateful"]
_DYNAMIC_AXES = {"image": (0, 1, 2), "input_ids": (0, 1), "input_mask": (0, 1)}  # default: the first axis
_FIRST_CAUSE = re.compile(r"<class '[\w.]+'>: (.+)")  # the exporter lists the first cause first


class ExportableModel(nn.Module):
    """MMF's model with plain tensors as inputs, each with one row per meme.

    Args:
        model: MMF's model, on the CPU.
        resize: Converts ``image`` and ``size`` to the model's input; ``None`` if it uses no images.
    """

    def __init__(self, model: nn.Module, resize: PillowResize | None) -> None:
        super().__init__()
        self.model, self.resize = model, resize

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the probabilities of the classes, float32 [batch, classes]."""
        batch = SampleList()
        batch.dataset_name, batch.dataset_type = "hateful_memes", "test"
        if self.resize is not None:
            batch.image = self.resize(inputs["image"], inputs["size"])
        if "input_ids" in inputs:
            batch.input_ids, batch.input_mask = inputs["input_ids"], inputs["input_mask"]
            batch.segment_ids = torch.zeros_like(batch.input_ids)  # one text is one segment
            # MMBT of 1.0.0rc12 would compute it by comparing values, which a graph does not have.
            batch.modal_token_type_ids = torch.ones_like(batch.input_ids[:, :1])
        if "features" in inputs:
            batch.image_feature_0, info = inputs["features"], SampleList()
            info.max_features = inputs["max_features"]
            info.bbox = region_locations(inputs["boxes"], inputs["image_size"])
            batch.image_info_0 = info
        # The method of the class, because that of the object may score a batch in parts.
        scores: Tensor = type(self.model).forward(self.model, batch)["scores"]
        return scores.softmax(1)


def region_locations(boxes: Tensor, image_size: Tensor) -> Tensor:
    """Compute ViLBERT's region locations: corners and area relative to the image.

    MMF 1.0.0rc10 computes them with numpy, whose results an exporter would treat as constants.

    Args:
        boxes: Pixels (x1, y1, x2, y2), [batch, boxes, 4].
        image_size: (height, width), [batch, 2].

    Returns:
        Locations, [batch, boxes, 5].
    """
    height, width = image_size[:, None, 0], image_size[:, None, 1]
    x1, y1, x2, y2 = boxes.unbind(-1)
    area = (y2 - y1) * (x2 - x1) / (width * height)
    return torch.stack([x1 / width, y1 / height, x2 / width, y2 / height, area], -1)


def _vilbert_inputs(batch: SampleList) -> dict[str, Any]:
    info, tokens = batch.image_info_0, (batch.input_ids, batch.input_mask, batch.segment_ids)
    text = zip(("input_ids", "attention_mask", "token_type_ids"), tokens, strict=True)
    image = {"image_dim": info.max_features, "image_location": info.bbox, "image_feature": batch.image_feature_0}
    return {**dict(text), **image, "image_target": None, "image_label": None}


def export_onnx(trainer: Any, request: AttemptRequest, task: ExportTask) -> None:
    """Export the model that MMF's trainer has predicted with to the folder of the task.

    Raises:
        UsageError: The model or its input processing cannot be exported.
    """
    assert request.checkpoint is not None
    started, folder = time.monotonic(), Path(task.export_dir)
    dataset = get_single_loader(trainer.test_loader).dataset
    row, resize = dataset[0], None
    if "image" in row:
        processor = _require_processor(dataset.image_processor, "TorchvisionTransforms")
        resize = PillowResize(processor.transform.transforms)
    model = getattr(trainer.model, "module", trainer.model).cpu().float().eval()
    if hasattr(model, "get_image_and_text_features"):
        model.get_image_and_text_features = _vilbert_inputs
    program = export_program(request.model, ExportableModel(model, resize), _example_inputs(row))
    inputs = program.model.graph.inputs
    for unused in [value for value in inputs if not value.uses()]:
        inputs.remove(unused)
    program.model.metadata_props["classes"] = json.dumps(_CLASSES)
    file = folder / "model.onnx"
    with require_disk_space(file, model.state_dict(), "the exported model", 2 if task.int8 else 1):
        program.save(str(file))
        names = {value.name: value for value in inputs}
        boxes, dim = getattr(row, "image_feature_0", torch.empty(0, 0)).shape
        description = {
            "inputs": [{"name": name, "dtype": value.dtype.numpy().name} for name, value in names.items()],
            "text": _export_tokenizer(dataset.text_processor, folder) if "input_ids" in names else None,
            "image": "image" in names,
            "features": {"boxes": boxes, "dim": dim} if "features" in names else None,
            "classes": _CLASSES,
            "opset": _OPSET,
            "checkpoint_sha256": file_digest(Path(request.checkpoint)).hex(),
            "versions": {"mmfw": __version__, "mmf": mmf_version, **{n: version(n) for n in _PACKAGES}},
        }
        write_json(folder / "model.json", description)
        if task.int8:
            _quantize_model(file, folder / "int8.onnx")
        for number in range(len(dataset) if description["features"] else 0):
            _save_features(dataset[number], folder)
    request.write_event("exported", seconds=round(time.monotonic() - started, 1))


def _quantize_model(model: Path, target: Path) -> None:
    """Write a model with 8-bit weights, except in convolutions, which would become twice as slow."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    def infer_shapes(path: str, output: str, *_: Any, **__: Any) -> None:
        """Infer shapes in Python, because on Windows the C code only opens paths in the code page.

        This also removes the shapes of weights, which onnxruntime transposes when it converts Gemm to MatMul.
        """
        loaded = onnx.load(path)
        del loaded.graph.value_info[:]
        onnx.save(onnx.shape_inference.infer_shapes(loaded), output)

    with replace_attribute(onnx.shape_inference, "infer_shapes_path", infer_shapes):
        quantize_dynamic(model, target, op_types_to_quantize=["MatMul", "Gather"], weight_type=QuantType.QInt8)


def _require_processor(processor: Any, *supported_names: str) -> Any:
    """Return MMF's processor without its wrapper.

    Raises:
        UsageError: The class of the processor is not supported.
    """
    inner = getattr(processor, "processor", processor)
    if type(inner).__name__ not in supported_names:
        supported = ", ".join(supported_names)
        raise UsageError(f"cannot export MMF's processor {type(inner).__name__} (supported: {supported})")
    return inner


def _save_features(row: Any, folder: Path) -> None:
    """Write the region features of one meme as ``features/ID.npz``, which the exported ``run.py`` reads.

    Args:
        row: MMF's sample of the meme.
        folder: Folder of the exported model.
    """
    info = row.image_info_0
    arrays: dict[str, Any] = {"features": row.image_feature_0[: int(info["max_features"])]}
    if "bbox" in info:
        height, width, boxes = info["image_height"], info["image_width"], numpy.asarray(info["bbox"])
        if boxes.shape[1] == 5:  # in 1.0.0rc12, relative locations (see region_locations)
            boxes = boxes[:, :4] * numpy.array([width, height, width, height], numpy.float32)
        arrays |= {"boxes": boxes, "image_size": [height, width]}
    (folder / "features").mkdir(exist_ok=True)
    numpy.savez(folder / "features" / f"{int(row.id)}.npz", **arrays)


def _export_tokenizer(processor: Any, folder: Path) -> dict[str, Any]:
    """Write ``tokenizer.json``, and return the value of ``text`` in ``model.json``."""
    processor = _require_processor(processor, "BertTokenizer", "ClipTokenizer")
    tokenizer = processor._tokenizer
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    write_bytes(folder / "tokenizer.json", backend.to_str().encode())
    cls, sep = tokenizer.convert_tokens_to_ids([processor._CLS_TOKEN, processor._SEP_TOKEN])
    return {"max_length": processor._max_seq_length, "cls": cls, "sep": sep, "pad": tokenizer.pad_token_id}


def _example_inputs(row: Any) -> dict[str, Tensor]:
    """Return example inputs for a batch of 3 memes.

    Sizes that may vary, such as the length of a text, differ from all constants of the model, so that the
    exporter does not treat them as constants.

    Args:
        row: A sample of the dataset, which shows the inputs of the model and their shapes.

    Returns:
        The inputs by name.
    """
    inputs = {}
    if "image" in row:
        inputs["image"] = torch.zeros(3, 52, 46, 3, dtype=torch.uint8)
        inputs["size"] = torch.tensor([[52, 46], [40, 44], [50, 46]])
    if "input_ids" in row:
        inputs |= {name: torch.ones(3, 9, dtype=torch.long) for name in ("input_ids", "input_mask")}
    if "image_feature_0" in row:
        boxes = len(row.image_feature_0)
        inputs["features"] = torch.zeros(3, *row.image_feature_0.shape)
        inputs |= {"boxes": torch.zeros(3, boxes, 4), "image_size": torch.ones(3, 2)}
        inputs["max_features"] = torch.full((3,), boxes)
    return inputs


def _require_two_scores(model: ExportableModel, inputs: dict[str, Tensor]) -> None:
    """Raise ValueError unless the model returns one score per class for each of 3 rows."""
    with torch.no_grad():
        shape = tuple(model(inputs).shape)
    if shape != (3, len(_CLASSES)):
        raise ValueError(f"its scores have shape {shape[1:]}, not two values")


def export_program(model_name: str, model: ExportableModel, inputs: dict[str, Tensor]) -> Any:
    """Export a model as an ONNX program for batches of any size.

    Args:
        model_name: MMF's name of the model, for messages.
        model: The model.
        inputs: Example inputs with 3 rows.

    Returns:
        The program.

    Raises:
        UsageError: torch cannot export the model.
        MemoryError: There is too little memory.
        OSError: A file cannot be written.
    """
    try:
        _require_two_scores(model, inputs)
        dynamic = torch.export.Dim.DYNAMIC
        axes = {name: dict.fromkeys(_DYNAMIC_AXES.get(name, (0,)), dynamic) for name in inputs}
        return torch.onnx.export(
            model,
            kwargs={"inputs": inputs},
            dynamic_shapes={"inputs": axes},
            input_names=list(inputs),
            output_names=["probabilities"],
            opset_version=_OPSET,
            dynamo=True,
        )
    except (MemoryError, OSError):
        raise
    except Exception as error:  # raised by MMF, torch or onnxscript
        cause = _FIRST_CAUSE.search(str(error))
        reason = cause[1] if cause else f"{type(error).__name__}: {error}"
        raise UsageError(f"torch {torch.__version__} cannot export {model_name} ({reason})") from error
