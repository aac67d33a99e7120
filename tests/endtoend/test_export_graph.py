"""ONNX graphs that the worker exports: they predict as MMF does, from plain bytes and ids."""

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
# The models of all presets, and what each reads.
READS = {
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
def odd(tool: Tool, tmp_path: Path) -> Tool:
    """The tool beside a copy of the world with odd texts, and images of odd sizes and modes, to predict."""
    from PIL import Image

    odd = tool.with_world_copy("odd")
    modes = ("RGB", "RGBA", "L", "P", "RGB")
    for row, text, (height, width), mode in zip(rows(odd), TEXTS, SIZES, modes, strict=True):
        row["text"] = text
        path = odd.world.dataset / "images" / row["img"]
        with Image.open(path) as image:
            changed = image.resize((width, height), Image.Resampling.NEAREST).convert(mode)
        changed.save(path)
        with (tmp_path / "rows.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    (tmp_path / "rows.jsonl").replace(odd.world.dataset / "annotations" / "test_unseen.jsonl")
    return odd


@pytest.fixture
def exported(odd: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Has a worker predict with one of the tiny recipes, export to ``экспорт``, and returns the exit code."""
    folder = tmp_path / "экспорт"
    folder.mkdir()
    run_worker = attempts.run_worker

    def exporting(run: Run, asked: AttemptRequest, **options: Any) -> AttemptOutcome:
        task = ExportTask(**vars(asked.task), export_dir=str(folder))
        return run_worker(run, replace(asked, task=task), **options)

    def export(name: str) -> int:
        odd.get_trained_run(name)
        monkeypatch.setattr(attempts, "run_worker", exporting)
        return odd.run_for_exit_code("predict", name, "--no-report", "--precision", "fp32", "--json")

    return export


def rows(tool: Tool) -> list[dict[str, Any]]:
    """Return the predictions."""
    path = tool.world.dataset / "annotations" / "test_unseen.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def inputs_of(tool: Tool, folder: Path, wanted: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch of memes as ``model.json`` wants it, by nothing but numpy, Pillow and tokenizers."""
    import lmdb
    import numpy as np
    from PIL import Image
    from tokenizers import Tokenizer

    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    made: dict[str, Any] = {}
    if text := about["text"]:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        most = text["max_length"]
        found = [tokenizer.encode(row["text"], add_special_tokens=False).ids[: most - 2] for row in wanted]
        ids = [[text["cls"], *each, text["sep"]] for each in found]
        length = min(most, max(map(len, ids)) + 1)
        made["input_ids"] = np.array([each + [text["pad"]] * (length - len(each)) for each in ids])
        made["input_mask"] = np.array([[1] * len(each) + [0] * (length - len(each)) for each in ids])
    if about["image"]:
        paths = [tool.world.dataset / "images" / row["img"] for row in wanted]
        images = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
        made["size"] = np.array([image.shape[:2] for image in images])
        made["image"] = np.full((len(images), *(made["size"].max(0) + 3), 3), 99, np.uint8)
        for image, place in zip(images, made["image"], strict=True):
            place[: image.shape[0], : image.shape[1]] = image
    if about["features"]:
        lmdb_folder = tool.world.dataset / "features" / "detectron.lmdb"
        with lmdb.open(str(lmdb_folder), readonly=True, lock=False) as env, env.begin() as transaction:
            found = [pickle.loads(transaction.get(Path(row["img"]).stem.encode())) for row in wanted]
        made["features"] = np.stack([record["features"] for record in found])
        made["boxes"] = np.stack([record["bbox"] for record in found]).astype(np.float32)
        sizes = [(record["image_height"], record["image_width"]) for record in found]
        made["image_size"] = np.array(sizes, np.float32)
        made["max_features"] = np.array([len(record["features"]) for record in found])
    return {each["name"]: made[each["name"]].astype(each["dtype"]) for each in about["inputs"]}


@pytest.mark.parametrize("name", mark_wide(READS, except_for=("vilbert",)))
def test_the_graph_predicts_odd_memes_as_mmf_does_in_batches_of_any_size(
    odd: Tool, exported: Callable[[str], int], tmp_path: Path, name: str
) -> None:
    import onnx
    import onnxruntime

    assert exported(name) == 0, odd.errors + odd.read_last_log()
    folder, wanted, expected = tmp_path / "экспорт", rows(odd), probabilities(json.loads(odd.output))
    session = onnxruntime.InferenceSession((folder / "model.onnx").read_bytes())
    assert {each.name for each in session.get_inputs()} == READS[name]
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == ["not hateful", "hateful"]

    for size in (1, 3, 8):
        for first in range(0, len(wanted), size):
            batch = [number % len(wanted) for number in range(first, first + size)]
            inputs = inputs_of(odd, folder, [wanted[number] for number in batch])
            (scores,) = session.run(["probabilities"], inputs)
            assert scores.sum(1) == pytest.approx(1, abs=1e-6)
            assert list(scores[:, 1]) == pytest.approx([expected[number] for number in batch], abs=2e-6)
            if "max_features" in inputs:
                inputs["max_features"][:] = 4
                fewer = session.run(None, inputs)[0]
                inputs["features"][:, 4:] = 7
                assert session.run(None, inputs)[0] == pytest.approx(fewer, abs=1e-6)
                assert fewer != pytest.approx(scores, abs=1e-5), "the number of regions is a constant"

    graph = onnx.shape_inference.infer_shapes(onnx.load(folder / "model.onnx")).graph
    operations = {node.op_type for node in graph.node}
    doubles = {each.name for each in graph.value_info if each.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE}
    transposed = {node.output[0] for node in graph.node if node.op_type == "Transpose"} & doubles
    factors = {name for node in graph.node if node.op_type == "MatMul" for name in node.input}
    assert not transposed & factors, "onnxruntime before 1.26 cannot multiply them"
    assert "BatchNormalization" not in operations, "it was to be folded into the convolutions"


@pytest.mark.parametrize("name", mark_wide(["concat_bow", "cnn_lstm"], except_for=("cnn_lstm",)))
def test_a_model_that_reads_something_else_is_refused_by_name(
    odd: Tool, exported: Callable[[str], int], name: str
) -> None:
    assert exported(name) == 2
    assert f"cannot export {name} (AttributeError: Key text not found in the SampleList" in odd.errors
