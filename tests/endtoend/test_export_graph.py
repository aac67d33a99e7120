"""ONNX graphs that the worker exports, which predict from plain bytes and ids as MMF does."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmf_win.protocol import AttemptOutcome, AttemptRequest
from mmf_win.protocol.attempt import ExportTask
from mmf_win.runs import attempts
from mmf_win.runs.folder import Run
from tests.endtoend.conftest import Tool, probabilities
from tests.worlds.tools import mark_wide

TOKENS = {"input_ids", "input_mask"}
IMAGE = {"image", "size"}
# For each model of the presets, the inputs of its graph.
MODEL_INPUTS = {
    "bert": TOKENS,
    "image": IMAGE,
    "regions": {"features"},
    "clip": IMAGE | {"input_ids"},
    "concat_bert": TOKENS | IMAGE,
    "late_fusion": TOKENS | IMAGE,
    "mmbt": TOKENS | IMAGE,
    "mmbt_regions": TOKENS | {"features"},
    "visual_bert": TOKENS | {"features", "max_features"},
    "vilbert": TOKENS | {"features", "max_features", "boxes", "image_size"},
}
TEXTS = (
    "",
    "CAFÉ cafe\u0301 na\u00efve смех\u00ad good",
    "世界 the世a \U0001f600\U0001f44d\U0001f3fd [SEP] dog [PAD] tree",
    "love the " * 40 + "cat",
    "it's\ta\u200bbad\x00 dog!!",
)
SIZES = ((64, 64), (90, 21), (33, 70), (1, 5), (40, 40))  # height and width; (90, 21) loses height first


@pytest.fixture
def tool_copy(tool: Tool, tmp_path: Path) -> Tool:
    """Return the tool with a copy of the world; the texts, sizes and modes of test_unseen are unusual."""
    from PIL import Image

    tool_copy = tool.with_world_copy("unusual memes")
    modes = ("RGB", "RGBA", "L", "P", "RGB")
    for row, text, (height, width), mode in zip(read_rows(tool_copy), TEXTS, SIZES, modes, strict=True):
        row["text"] = text
        path = tool_copy.world.dataset / "images" / row["img"]
        with Image.open(path) as image:
            changed = image.resize((width, height), Image.Resampling.NEAREST).convert(mode)
        changed.save(path)
        with (tmp_path / "rows.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    (tmp_path / "rows.jsonl").replace(tool_copy.world.dataset / "annotations" / "test_unseen.jsonl")
    return tool_copy


@pytest.fixture
def export_recipe(tool_copy: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Return a function that predicts with a tiny recipe, exports it to ``экспорт`` and returns the exit code."""
    folder = tmp_path / "экспорт"
    folder.mkdir()
    run_worker = attempts.run_worker

    def run_export_worker(run: Run, request: AttemptRequest, **options: Any) -> AttemptOutcome:
        task = ExportTask(**vars(request.task), export_dir=str(folder))
        return run_worker(run, replace(request, task=task), **options)

    def export(name: str) -> int:
        tool_copy.get_trained_run(name)
        monkeypatch.setattr(attempts, "run_worker", run_export_worker)
        return tool_copy.run_for_exit_code("predict", name, "--no-report", "--precision", "fp32", "--json")

    return export


def read_rows(tool: Tool) -> list[dict[str, Any]]:
    """Return the rows to predict."""
    path = tool.world.dataset / "annotations" / "test_unseen.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def build_inputs(tool: Tool, folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch of memes as ``model.json`` describes it, read without PyTorch and MMF."""
    import lmdb
    import numpy as np
    from PIL import Image
    from tokenizers import Tokenizer

    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    inputs: dict[str, Any] = {}
    if text := description["text"]:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        max_length = text["max_length"]
        token_ids = [tokenizer.encode(row["text"], add_special_tokens=False).ids[: max_length - 2] for row in rows]
        ids = [[text["cls"], *row_ids, text["sep"]] for row_ids in token_ids]
        length = min(max_length, max(map(len, ids)) + 1)
        inputs["input_ids"] = np.array([row_ids + [text["pad"]] * (length - len(row_ids)) for row_ids in ids])
        inputs["input_mask"] = np.array([[1] * len(row_ids) + [0] * (length - len(row_ids)) for row_ids in ids])
    if description["image"]:
        paths = [tool.world.dataset / "images" / row["img"] for row in rows]
        images = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
        inputs["size"] = np.array([image.shape[:2] for image in images])
        inputs["image"] = np.full((len(images), *(inputs["size"].max(0) + 3), 3), 99, np.uint8)
        for image, target in zip(images, inputs["image"], strict=True):
            target[: image.shape[0], : image.shape[1]] = image
    if description["features"]:
        lmdb_folder = tool.world.dataset / "features" / "detectron.lmdb"
        with lmdb.open(str(lmdb_folder), readonly=True, lock=False) as env, env.begin() as transaction:
            records = [pickle.loads(transaction.get(Path(row["img"]).stem.encode())) for row in rows]
        inputs["features"] = np.stack([record["features"] for record in records])
        inputs["boxes"] = np.stack([record["bbox"] for record in records]).astype(np.float32)
        sizes = [(record["image_height"], record["image_width"]) for record in records]
        inputs["image_size"] = np.array(sizes, np.float32)
        inputs["max_features"] = np.array([len(record["features"]) for record in records])
    return {item["name"]: inputs[item["name"]].astype(item["dtype"]) for item in description["inputs"]}


@pytest.mark.parametrize("name", mark_wide(MODEL_INPUTS, except_for=("vilbert",)))
def test_graph_predicts_unusual_memes_like_mmf_in_batches_of_any_size(
    tool_copy: Tool, export_recipe: Callable[[str], int], tmp_path: Path, name: str
) -> None:
    import onnx
    import onnxruntime

    assert export_recipe(name) == 0, tool_copy.errors + tool_copy.read_last_log()
    folder, rows, expected = tmp_path / "экспорт", read_rows(tool_copy), probabilities(json.loads(tool_copy.output))
    session = onnxruntime.InferenceSession((folder / "model.onnx").read_bytes())
    assert {model_input.name for model_input in session.get_inputs()} == MODEL_INPUTS[name]
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == ["not hateful", "hateful"]

    for size in (1, 3, 8):
        for first in range(0, len(rows), size):
            batch = [index % len(rows) for index in range(first, first + size)]
            inputs = build_inputs(tool_copy, folder, [rows[index] for index in batch])
            (scores,) = session.run(["probabilities"], inputs)
            assert scores.sum(1) == pytest.approx(1, abs=1e-6)
            assert list(scores[:, 1]) == pytest.approx([expected[index] for index in batch], abs=2e-6)
            if "max_features" in inputs:
                inputs["max_features"][:] = 4
                scores_of_fewer_regions = session.run(None, inputs)[0]
                inputs["features"][:, 4:] = 7
                assert session.run(None, inputs)[0] == pytest.approx(scores_of_fewer_regions, abs=1e-6)
                assert scores_of_fewer_regions != pytest.approx(scores, abs=1e-5), (
                    "the number of regions must not be a constant"
                )

    graph = onnx.shape_inference.infer_shapes(onnx.load(folder / "model.onnx")).graph
    operations = {node.op_type for node in graph.node}
    doubles = {value.name for value in graph.value_info if value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE}
    transposed = {node.output[0] for node in graph.node if node.op_type == "Transpose"} & doubles
    factors = {name for node in graph.node if node.op_type == "MatMul" for name in node.input}
    assert not transposed & factors, "onnxruntime before 1.26 must be able to multiply them"
    assert "BatchNormalization" not in operations, "batch normalization must be folded into the convolutions"


@pytest.mark.parametrize("name", mark_wide(["concat_bow", "cnn_lstm"], except_for=("cnn_lstm",)))
def test_export_of_a_model_with_other_inputs_is_refused(
    tool_copy: Tool, export_recipe: Callable[[str], int], name: str
) -> None:
    assert export_recipe(name) == 2
    assert f"cannot export {name} (AttributeError: Key text not found in the SampleList" in tool_copy.errors
