"""Counting of the tensors that a file of weights sets, wherever MMF loads one."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from mmf_win.upstream.config import merge_settings
from tests.endtoend.conftest import Tool, load_checkpoint, read_events_of_kind

READS_A_FILE = """
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


def from_pretrained(tool: Tool, file: Path, mapping: dict[str, str]) -> str:
    """A preset of a Visual BERT that takes what a mapping names from a file, as ``visual_bert_coco`` does."""
    start = {"resume_file": str(file), "resume_pretrained": True, "pretrained_state_mapping": mapping}
    return tool.preset("visual_bert", settings=merge_settings(tool.settings("visual_bert"), {"checkpoint": start}))


def test_weights_of_another_model_end_a_training_before_its_first_update(tool: Tool) -> None:
    other = tool.get_trained_run("regions").checkpoints / "best.ckpt"
    assert (
        tool.run_for_exit_code("train", from_pretrained(tool, other, {"model.bert": "model.bert"}), "--updates", "1")
        == 3
    )
    assert f"{other}: none of its " in tool.errors
    [run] = (tool.save_dir / "visual_bert").iterdir()
    assert "train_started" not in (run / "events.jsonl").read_text(encoding="utf-8")


def test_a_part_is_counted_and_what_is_not_in_the_file_is_named(tool: Tool) -> None:
    other = tool.get_trained_run("visual_bert")
    file = other.checkpoints / "best.ckpt"
    preset = from_pretrained(tool, file, {"model.bert": "model.bert"})
    run = tool.train(preset, "--updates", "1", "--seed", "2", "optimizer.params.lr=0.0", "training.lr_scheduler=false")
    ours, theirs = load_checkpoint(run)["model"], load_checkpoint(other)["model"]
    same = [name for name in ours if ours[name].equal(theirs[name])]
    rest = [name for name in ours if not name.startswith("model.bert.")]
    assert rest and all(name.startswith("model.bert.") for name in same if name not in rest)
    [loaded] = read_events_of_kind(run, "loaded")
    counted = f"{file}: {len(ours) - len(rest)} of the model's {len(ours)} tensors; not in the file: {rest[0]}"
    assert (loaded["copied"], loaded["total"], loaded["missing"]) == (len(ours) - len(rest), len(ours), rest)
    assert tool.errors.count(counted) == 1
    assert tool.run_for_exit_code("runs", "show") == 0 and counted in tool.output
    page = Path(tool("report")["report"])
    assert f"{len(ours) - len(rest)} of the model" in page.read_text(encoding="utf-8")

    resumed = tool.train("--resume", "last", "--updates", "2")
    assert " tensors" not in tool.errors, "a whole file needs no line"
    assert [each["copied"] == each["total"] for each in read_events_of_kind(resumed, "loaded")] == [False, True]
    assert tool.run_for_exit_code("predict", "--no-report") == 0 and " tensors" not in tool.errors


@pytest.mark.wide
def test_a_tensor_of_another_shape_is_named(tool: Tool) -> None:
    file = tool.get_trained_run("visual_bert").checkpoints / "best.ckpt"
    mapping = {"model.bert.embeddings.word_embeddings": "model.bert.embeddings.position_embeddings"}
    assert tool.run_for_exit_code("train", from_pretrained(tool, file, mapping), "--updates", "1") == 3
    assert f"{file}: model.bert.embeddings.position_embeddings.weight has shape" in tool.errors


def test_a_model_that_reads_a_file_while_it_is_built_needs_trust_as_a_checkpoint_does(
    tool: Tool, tmp_path: Path
) -> None:
    import torch

    file, code = tmp_path / "веса.pt", tmp_path / "own" / "__init__.py"
    torch.save({"from": PurePosixPath("x"), "weight": torch.tensor(1.0)}, file)
    code.parent.mkdir()
    code.write_text(READS_A_FILE, encoding="utf-8")
    settings = merge_settings(
        tool.settings("image"), {"model_config": {"reads": {"file": str(file), "losses": ["cross_entropy"]}}}
    )
    words = ("train", tool.preset("image", model="reads", settings=settings), "--updates", "1")
    words = (*words, f"env.user_dir={code.parent}")  # so its code is trusted, and the file is not
    assert tool.run_for_exit_code(*words) == 3
    assert str(file) in tool.errors and "pathlib.PurePosixPath" in tool.errors and "--trust" in tool.errors
    assert tool.run_for_exit_code(*words, "--trust") == 0
