"""Origin of non-finite values in the messages of a run, with the real MMF."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from mmf_win.runs.folder import Run
from mmf_win.runs.lookup import list_runs
from tests.endtoend.conftest import SetFaults, Tool, load_checkpoint, read_events_of_kind, start_updates
from tests.endtoend.test_precision import HALF_PRECISION
from tests.endtoend.test_processes import TWO_PROCESSES
from tests.worlds import tiny_mmf

CLIP_GRADIENTS = {"clip_gradients": True, "max_grad_l2_norm": 1.0}
# Random numbers choose the bad rows; a second pass finds the same rows only if it draws the same numbers.
FAULTY_MODEL_CODE = f"""
import sys

import torch
from mmf.common.registry import registry
from mmf.datasets.builders.hateful_memes.dataset import HatefulMemesImageDataset
from mmf.models.base_model import BaseModel
from torch import nn

sys.path.insert(0, {str(Path(tiny_mmf.__file__).parent)!r})
import faults


class Planted(nn.Module):
    def __init__(self, source, share):
        super().__init__()
        self.source, self.share = source, share

    def forward(self, hidden):
        affected = (torch.rand(len(hidden), 1) < self.share) & self.training
        if affected.any():
            print("affected", *affected.flatten().int().tolist())
        if self.source == "forward":
            return torch.where(affected, float("nan"), hidden)
        if self.source == "backward":
            return hidden + torch.where(affected, hidden * 0, torch.ones(())).sqrt()  # its derivative at 0 is infinite
        return hidden


@registry.register_model("planted")
class Model(BaseModel):
    def build(self):
        config = self.config
        pool = nn.AdaptiveAvgPool2d(4)
        self.image = nn.Sequential(pool, nn.Flatten(), nn.Linear(48, 8), nn.ReLU(inplace=True))
        self.innocent = nn.Linear(8, 8)  # never the cause of non-finite values
        self.blocks = nn.Sequential(Planted(config.source, config.share), nn.Linear(8, 8))
        self.classify = nn.Linear(8, 2)
        if config.source == "input":
            rows = HatefulMemesImageDataset
            rows.__getitem__ = lambda self, number, get=rows.__getitem__: spoil(get(self, number), config.share)

    def forward(self, sample_list):
        hidden = self.image(sample_list.image)
        hidden = self.blocks(hidden) + self.innocent(hidden)
        if self.config.source == "between":
            hidden = hidden + (hidden * 0).sqrt()
        sample_list.image = sample_list.image.flatten(1)  # MMF's models change their inputs, too
        return {{"scores": self.classify(hidden)}}


def spoil(sample, row):
    if sample.id == row:
        sample.image[0, 0, 0] = float("nan")
    return sample
"""


def write_faulty_model(tool: Tool, source: str, share: float = 0.1, **training: Any) -> tuple[str, ...]:
    """Write a model or dataset that yields non-finite numbers, and return the arguments to train it."""
    folder = tool.folder / "код"
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text(FAULTY_MODEL_CODE, encoding="utf-8")
    processors = {"text_processor": {"type": "simple_sentence"}}
    preset = {
        "model": "planted",
        "config": "projects/others/unimodal/configs/hateful_memes/image.yaml",
        "offline": True,
        "settings": {
            "dataset_config": {"hateful_memes": {"processors": processors}},
            "model_config": {"planted": {"source": source, "share": share, "losses": ["cross_entropy"]}},
            "training": {"batch_size": 4, "num_workers": 0, "seed": 1, **CLIP_GRADIENTS, **training},
        },
    }
    path = tool.folder / "planted.yaml"
    path.write_text(json.dumps(preset), encoding="utf-8")
    return ("train", str(path), f"env.user_dir={folder}")


def run_until_nonfinite(tool: Tool, *arguments: str) -> tuple[Run, dict[str, Any]]:
    """Run a command that fails; return its run and the event with the origin of the non-finite values."""
    assert tool.run_for_exit_code(*arguments) == 7
    (run,) = list_runs(tool.save_dir)
    [event] = read_events_of_kind(run, "nonfinite")
    assert event["text"] in tool.errors
    return run, event


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("forward", r"the loss of update \d+ is not a number: first in blocks.0 "),
        ("backward", r"the gradient norm of update \d+ is not finite: first in the backward pass of blocks.0 "),
    ],
)
def test_second_pass_finds_module_and_rows_and_report_shows_them(
    tool: Tool, set_faults: SetFaults, source: str, message: str
) -> None:
    """Only one of the micro-batches of the batch has bad rows."""
    set_faults({"at": "backward", "do": "cuda_oom", "above": 2})
    arguments = (*write_faulty_model(tool, source, share=0.1), "--updates", "30", "training.checkpoint_interval=1")
    run, event = run_until_nonfinite(tool, *arguments)
    assert re.match(message + r"\(its inputs were finite\); rows \d+$", event["text"])
    assert (event["module"], event["inputs_finite"]) == ("blocks.0", True)
    *_, first_pass, second_pass = re.findall("affected ([01]) ([01])", run.log.read_text(encoding="utf-8"))
    assert first_pass == second_pass, "the second pass must draw the same numbers"
    assert event["bad_ids"] == [id_ for id_, is_bad in zip(event["ids"], second_pass, strict=True) if is_bad == "1"]
    assert len(event["bad_ids"]) == 1 and len(event["ids"]) == 2
    assert event["bad_fields"] == event["bad_parameters"] == []

    assert start_updates(run)[-1] == 0 and tool("runs")[0]["updates"] == event["update"]
    assert event["text"] in html.unescape(Path(tool("report")["report"]).read_text(encoding="utf-8"))
    run = tool.train("--resume", "last", "model_config.planted.share=0")
    assert start_updates(run)[-1] == event["update"]
    assert len(read_events_of_kind(run, "nonfinite")) == 1


@pytest.mark.wide
def test_nonfinite_gradient_between_modules_is_attributed_to_their_caller(tool: Tool) -> None:
    _, event = run_until_nonfinite(tool, *write_faulty_model(tool, "between"), "--updates", "1")
    assert "first in the backward pass of Model (its inputs were finite)" in event["text"]


@pytest.mark.wide
def test_next_loss_names_nonfinite_parameters_without_clipping(tool: Tool) -> None:
    arguments = write_faulty_model(tool, "between", clip_gradients=False, checkpoint_interval=9, evaluation_interval=9)
    _, event = run_until_nonfinite(tool, *arguments, "--updates", "2")
    assert "loss of update 2" in event["text"] and "parameters are not finite: image.2.weight" in event["text"]
    assert event["module"] == "image.2" and event["inputs_finite"]
    assert event["bad_parameters"][0] == "image.2.weight" and "classify.weight" not in event["bad_parameters"]


def test_nonfinite_input_rows_are_named_with_their_field(tool: Tool) -> None:
    annotations = tool.world.dataset / "annotations" / "train.jsonl"
    row = int(json.loads(annotations.read_text(encoding="utf-8").splitlines()[5])["id"])
    _, event = run_until_nonfinite(tool, *write_faulty_model(tool, "input", share=row), "--updates", "4")
    assert f"(its inputs were not finite); not finite in the batch: image; rows {row}" in tool.errors
    assert event["bad_fields"] == ["image"] and row in event["ids"]


@pytest.mark.wide
def test_nonfinite_loss_that_second_pass_does_not_repeat_is_reported(tool: Tool, set_faults: SetFaults) -> None:
    set_faults({"at": "forward", "do": "nan", "once": str(tool.folder / "affected")})
    _, event = run_until_nonfinite(tool, *write_faulty_model(tool, "nowhere"), "--updates", "1")
    assert event["text"].startswith("the loss of update 1 is not a number; a second pass over its rows")


def test_overflowing_fp16_updates_are_skipped_without_report(tool: Tool, set_faults: SetFaults) -> None:
    set_faults(HALF_PRECISION)
    settings = tool.recipe_settings("vilbert")
    settings["training"] |= {**CLIP_GRADIENTS, "seed": 3}
    run = tool.train(tool.write_preset("vilbert", settings=settings), "--updates", "5", "--precision", "fp16")
    assert load_checkpoint(run)["mmfw"]["scaler"]["scale"] < 2**16, "an update must overflow"
    assert not read_events_of_kind(run, "nonfinite")


@pytest.mark.wide
def test_rank_with_nonfinite_rows_reports_them(tool: Tool) -> None:
    _, event = run_until_nonfinite(
        tool, *write_faulty_model(tool, "backward", share=0.05), *TWO_PROCESSES, "--updates", "30"
    )
    assert event["module"] == "blocks.0"
    assert len(event["ids"]) == 2 and len(event["bad_ids"]) == 1
