"""A trained model as ONNX: bytes of images, tokens and region features in, probabilities out.

Beside it lie ``tokenizer.json``, for the library tokenizers, where the model reads text, and ``model.json``.
Its ``text`` says how ids become a row: ``cls``, at most ``max_length`` - 2 of them, ``sep``, and ``pad``
where the mask is 0. Rows are one longer than the longest of their batch, but no longer than ``max_length``.
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
_DYNAMIC_AXES = {
    "image": (0, 1, 2),
    "input_ids": (0, 1),
    "input_mask": (0, 1),
}  # axes; of others, only the first
_FIRST_CAUSE = re.compile(r"<class '[\w.]+'>: (.+)")  # in the exporter's summary, the first cause first


class ExportableModel(nn.Module):
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
            batch.segment_ids = torch.zeros_like(batch.input_ids)  # one text is one segment
            # MMBT of 1.0.0rc12 would compute it by comparing values, of which a graph has none.
            batch.modal_token_type_ids = torch.ones_like(batch.input_ids[:, :1])
        if "features" in inputs:
            batch.image_feature_0, info = inputs["features"], SampleList()
            info.max_features = inputs["max_features"]
            info.bbox = region_locations(inputs["boxes"], inputs["image_size"])
            batch.image_info_0 = info
        # Not of the object, which may score a batch in parts.
        scores: Tensor = type(self.model).forward(self.model, batch)["scores"]
        return scores.softmax(1)


def region_locations(boxes: Tensor, image_size: Tensor) -> Tensor:
    """What ViLBERT knows of regions: corners and area relative to their image, [batch, boxes, 5].

    ``boxes`` are pixels (x1, y1, x2, y2), ``image_size`` [batch, 2] is (height, width). 1.0.0rc10 computes it
    by numpy, which an exporter takes for constants.
    """
    height, width = image_size[:, None, 0], image_size[:, None, 1]
    x1, y1, x2, y2 = boxes.unbind(-1)
    area = (y2 - y1) * (x2 - x1) / (width * height)
    return torch.stack([x1 / width, y1 / height, x2 / width, y2 / height, area], -1)


def _vilbert_inputs(batch: SampleList) -> dict[str, Any]:
    info, tokens = batch.image_info_0, (batch.input_ids, batch.input_mask, batch.segment_ids)
    text = zip(("input_ids", "attention_mask", "token_type_ids"), tokens, strict=True)
    image = {
        "image_dim": info.max_features,
        "image_location": info.bbox,
        "image_feature": batch.image_feature_0,
    }
    return {**dict(text), **image, "image_target": None, "image_label": None}


def export_onnx(trainer: Any, request: AttemptRequest, task: ExportTask) -> None:
    """Write the model that MMF's trainer has predicted with to the folder of the task.

    Raises UsageError where the model, or what prepares its inputs, cannot be exported.
    """
    assert request.checkpoint is not None
    began, folder = time.monotonic(), Path(task.export_dir)
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
        about = {
            "inputs": [{"name": name, "dtype": value.dtype.numpy().name} for name, value in names.items()],
            "text": _export_tokenizer(dataset.text_processor, folder) if "input_ids" in names else None,
            "image": "image" in names,
            "features": {"boxes": boxes, "dim": dim} if "features" in names else None,
            "classes": _CLASSES,
            "opset": _OPSET,
            "checkpoint_sha256": file_digest(Path(request.checkpoint)).hex(),
            "versions": {"mmfw": __version__, "mmf": mmf_version, **{n: version(n) for n in _PACKAGES}},
        }
        write_json(folder / "model.json", about)
        if task.int8:
            _quantize_model(file, folder / "int8.onnx")
        for number in range(len(dataset) if about["features"] else 0):
            _save_features(dataset[number], folder)
    request.write_event("exported", seconds=round(time.monotonic() - began, 1))


def _quantize_model(model: Path, target: Path) -> None:
    """Write a model with weights of 8 bits, but for convolutions, which would take twice as long then."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    def infer_shapes(path: str, output: str, *_: Any, **__: Any) -> None:
        """Not in C, where on Windows no path of any letters can be opened.

        It also forgets the shapes of weights, which onnxruntime transposes as it makes a MatMul of a Gemm.
        """
        found = onnx.load(path)
        del found.graph.value_info[:]
        onnx.save(onnx.shape_inference.infer_shapes(found), output)

    with replace_attribute(onnx.shape_inference, "infer_shapes_path", infer_shapes):
        quantize_dynamic(
            model, target, op_types_to_quantize=["MatMul", "Gather"], weight_type=QuantType.QInt8
        )


def _require_processor(processor: Any, *supported_names: str) -> Any:
    """MMF's processor inside of its wrapper; UsageError where it is of another class."""
    inner = getattr(processor, "processor", processor)
    if type(inner).__name__ not in supported_names:
        only = " and ".join(supported_names)
        raise UsageError(f"MMF's processor {type(inner).__name__} cannot be exported, only {only}")
    return inner


def _save_features(row: Any, folder: Path) -> None:
    """Write a row's region features as ``run.py`` reads them."""
    info = row.image_info_0
    kept: dict[str, Any] = {"features": row.image_feature_0[: int(info["max_features"])]}
    if "bbox" in info:
        height, width, boxes = info["image_height"], info["image_width"], numpy.asarray(info["bbox"])
        if boxes.shape[1] == 5:  # of 1.0.0rc12 it is what location() makes
            boxes = boxes[:, :4] * numpy.array([width, height, width, height], numpy.float32)
        kept |= {"boxes": boxes, "image_size": [height, width]}
    (folder / "features").mkdir(exist_ok=True)
    numpy.savez(folder / "features" / f"{int(row.id)}.npz", **kept)


def _export_tokenizer(processor: Any, folder: Path) -> dict[str, Any]:
    """Write the tokenizer, and tell how its ids become a row."""
    processor = _require_processor(processor, "BertTokenizer", "ClipTokenizer")
    tokenizer = processor._tokenizer
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    write_bytes(folder / "tokenizer.json", backend.to_str().encode())
    cls, sep = tokenizer.convert_tokens_to_ids([processor._CLS_TOKEN, processor._SEP_TOKEN])
    return {"max_length": processor._max_seq_length, "cls": cls, "sep": sep, "pad": tokenizer.pad_token_id}


def _example_inputs(row: Any) -> dict[str, Tensor]:
    """Inputs of the shapes that rows of the dataset have; their lengths differ from all that is constant."""
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


def export_program(model_name: str, model: ExportableModel, inputs: dict[str, Tensor]) -> Any:
    """Export a model as an ONNX program that takes batches of any size.

    Raises:
        UsageError: torch cannot export it.
    """
    try:
        with torch.no_grad():
            shape = tuple(model(inputs).shape)
        if shape != (3, len(_CLASSES)):
            raise ValueError(f"its scores are {shape[1:]} numbers, not two")
        varies = torch.export.Dim.DYNAMIC
        axes = {each: dict.fromkeys(_DYNAMIC_AXES.get(each, (0,)), varies) for each in inputs}
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
    except Exception as error:  # of MMF, torch or onnxscript
        found = _FIRST_CAUSE.search(str(error))
        why = found[1] if found else f"{type(error).__name__}: {error}"
        raise UsageError(f"torch {torch.__version__} cannot export {model_name} ({why})") from error
