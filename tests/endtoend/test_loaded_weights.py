"""Counts of the tensors that a weights file sets in a model, wherever MMF loads one."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from mmf_win.upstream.config import merge_settings
from tests.endtoend.conftest import Tool, load_checkpoint, read_events_of_kind

FILE_LOADING_MODEL = """
import torch
from mmf.common.registry import registry
from mmf.models.base_model import BaseModel

@registry.register_model("reads")
class Reads(BaseModel):
    def build(self):
        self.head = torch.nn.Linear(3, 2)
        self.head.weight.data[0, 0] = torch.load(self.config.file)["weight"]

    def forward(self, sample_list):
        return {"scores": self.head(sample_list.image.mean((2, 3)))}
"""


def write_pretrained_preset(tool: Tool, file: Path, mapping: dict[str, str]) -> str:
    """Write a preset of a Visual BERT that loads the mapped tensors of a file, as ``visual_bert_coco`` does."""
    checkpoint = {"resume_file": str(file), "resume_pretrained": True, "pretrained_state_mapping": mapping}
    settings = merge_settings(tool.recipe_settings("visual_bert"), {"checkpoint": checkpoint})
    return tool.write_preset("visual_bert", settings=settings)


def test_weights_of_another_model_stop_training_before_its_first_update(tool: Tool) -> None:
    weights = tool.get_trained_run("regions").checkpoints / "best.ckpt"
    assert (
        tool.run_for_exit_code(
            "train", write_pretrained_preset(tool, weights, {"model.bert": "model.bert"}), "--updates", "1"
        )
        == 3
    )
    assert f"{weights}: none of its " in tool.errors
    [run] = (tool.save_dir / "visual_bert").iterdir()
    assert "train_started" not in (run / "events.jsonl").read_text(encoding="utf-8")


def test_partly_loaded_tensors_are_counted_and_missing_ones_are_named(tool: Tool) -> None:
    source_run = tool.get_trained_run("visual_bert")
    file = source_run.checkpoints / "best.ckpt"
    preset = write_pretrained_preset(tool, file, {"model.bert": "model.bert"})
    run = tool.train(preset, "--updates", "1", "--seed", "2", "optimizer.params.lr=0.0", "training.lr_scheduler=false")
    tensors, source_tensors = load_checkpoint(run)["model"], load_checkpoint(source_run)["model"]
    equal_names = [name for name in tensors if tensors[name].equal(source_tensors[name])]
    missing = [name for name in tensors if not name.startswith("model.bert.")]
    assert missing and all(name.startswith("model.bert.") for name in equal_names if name not in missing)
    [loaded] = read_events_of_kind(run, "loaded")
    message = (
        f"{file}: {len(tensors) - len(missing)} of the model's {len(tensors)} tensors; not in the file: {missing[0]}"
    )
    assert (loaded["copied"], loaded["total"], loaded["missing"]) == (
        len(tensors) - len(missing),
        len(tensors),
        missing,
    )
    assert tool.errors.count(message) == 1
    assert tool.run_for_exit_code("runs", "show") == 0 and message in tool.output
    page = Path(tool("report")["report"])
    assert f"{len(tensors) - len(missing)} of the model" in page.read_text(encoding="utf-8")

    resumed = tool.train("--resume", "last", "--updates", "2")
    assert " tensors" not in tool.errors, "no message may be printed for a file that sets all tensors"
    assert [event["copied"] == event["total"] for event in read_events_of_kind(resumed, "loaded")] == [False, True]
    assert tool.run_for_exit_code("predict", "--no-report") == 0 and " tensors" not in tool.errors


@pytest.mark.wide
def test_tensor_of_another_shape_is_reported(tool: Tool) -> None:
    file = tool.get_trained_run("visual_bert").checkpoints / "best.ckpt"
    mapping = {"model.bert.embeddings.word_embeddings": "model.bert.embeddings.position_embeddings"}
    assert tool.run_for_exit_code("train", write_pretrained_preset(tool, file, mapping), "--updates", "1") == 3
    assert f"{file}: model.bert.embeddings.position_embeddings.weight has shape" in tool.errors


def test_model_that_loads_a_file_while_it_is_built_needs_trust_like_a_checkpoint(tool: Tool, tmp_path: Path) -> None:
    import torch

    file, code = tmp_path / "веса.pt", tmp_path / "own" / "__init__.py"
    torch.save({"from": PurePosixPath("x"), "weight": torch.tensor(1.0)}, file)
    code.parent.mkdir()
    code.write_text(FILE_LOADING_MODEL, encoding="utf-8")
    settings = merge_settings(
        tool.recipe_settings("image"), {"model_config": {"reads": {"file": str(file), "losses": ["cross_entropy"]}}}
    )
    command = ("train", tool.write_preset("image", model="reads", settings=settings), "--updates", "1")
    command = (*command, f"env.user_dir={code.parent}")  # its code is trusted, but the file is not
    assert tool.run_for_exit_code(*command) == 3
    assert str(file) in tool.errors and "pathlib.PurePosixPath" in tool.errors and "--trust" in tool.errors
    assert tool.run_for_exit_code(*command, "--trust") == 0
