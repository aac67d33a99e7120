"""Every Hateful Memes model trains, resumes and predicts through ``mmfw``, at a tiny size."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.dataset.annotations import read_annotations
from mmf_win.dataset.prediction_file import read_predictions
from mmf_win.paths import is_portable
from tests.endtoend.conftest import SetFaults, Tool, probabilities, read_events_of_kind, start_updates
from tests.worlds import tiny_mmf
from tests.worlds.tools import mark_wide, read_tensorboard_scalars


def train_resume_predict(tool: Tool, preset: str) -> None:
    """Three updates, two more, and predictions of the test split, which with --fast are the same."""
    trained = tool("train", preset, "--updates", "3", "--seed", "1")
    assert (trained["state"], trained["updates"], trained["max_updates"]) == ("done", 3, 3)

    resumed = tool("train", "--resume", "last", "--updates", "5")
    assert resumed["id"] == trained["id"]
    assert (resumed["state"], resumed["updates"]) == ("done", 5)
    assert start_updates(tool.get_run(resumed)) == [0, 3], "the second attempt resumes where the first ended"

    assert list(read_tensorboard_scalars(tool.get_run(resumed).path, "train/loss")) == [1, 2, 3, 4, 5]
    assert read_tensorboard_scalars(tool.get_run(resumed).path, "val/auroc")

    predicted = tool("predict", "--no-report")
    assert not list(tool.get_run(resumed).reports.glob("*.html"))
    rows = read_annotations(tool.world.dataset / "annotations" / "test_unseen.jsonl")
    written = read_predictions(Path(predicted["csv"]))
    assert [int(row.id) for row in written] == [row.id for row in rows]
    assert all(0 <= row.proba <= 1 and row.label in (0, 1) for row in written)
    if rows[0].label is not None:
        assert 0 <= predicted["auroc"] <= 1
        assert 0 <= predicted["accuracy"] <= 1
    for path in tool.get_run(resumed).path.rglob("*"):
        assert is_portable(path.name), f"{path.name} is not legal on Windows"
    fast = tool("predict", "--no-report", "--fast")
    assert probabilities(fast) == pytest.approx(probabilities(predicted), abs=1e-5)


@pytest.mark.parametrize("name", mark_wide(sorted(tiny_mmf.recipes()), except_for=("cnn_lstm", "mmbt", "vilbert")))
def test_trains_resumes_and_predicts_also_in_half_precision(tool: Tool, set_faults: SetFaults, name: str) -> None:
    """Texts of some words are padded to 32 tokens, or with --fast to 8."""
    settings = tool.settings(name)
    processors = settings.get("dataset_config", {}).get("hateful_memes", {}).get("processors", {})
    if "max_seq_length" in processors.get("text_processor", {}).get("params", {}):
        processors["text_processor"]["params"]["max_seq_length"] = 32
    train_resume_predict(tool, tool.preset(name, settings=settings))

    set_faults({"at": "hardware", "do": "half"})
    halves = ["bf16", "fp16"]
    if name == "cnn_lstm":  # a CPU that only seems to have them has no LSTM in them
        import torch

        halves = ["bf16"] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else []
    for updates, half in enumerate(halves, start=6):
        resumed = tool("train", "--resume", "last", "--precision", half, "--updates", str(updates))
        assert f"resuming in {half}" in tool.errors
        assert read_events_of_kind(tool.get_run(resumed), "train_started")[-1]["precision"] == half
    full = probabilities(tool("predict", "--no-report", "--precision", "fp32"))
    for half in halves:
        predicted = tool("predict", "--no-report", "--precision", half)
        assert predicted["members"][0]["precision"] == half
        assert probabilities(predicted) == pytest.approx(full, abs=0.03)


@pytest.mark.usefixtures("only_rc12")
@pytest.mark.parametrize("name", ["lxmert", "vilt", "mmf_transformer"])
def test_what_only_rc12_has_predicts_memes_without_labels(tool: Tool, tmp_path: Path, name: str) -> None:
    preset = tool.preset(name)
    tool.world = tiny_mmf.copy_without_labels(tool.world, tmp_path / "unlabelled")
    train_resume_predict(tool, preset)
    assert ("also reads padding" in tool.errors) == (name == "lxmert"), "it is not predicted fast"


@pytest.mark.wide
@pytest.mark.parametrize(("model", "start"), [("vilbert", "from_cc"), ("visual_bert", "from_coco")])
def test_a_model_starts_from_weights_pretrained_elsewhere(tool: Tool, model: str, start: str) -> None:
    """Write a preset like vilbert_cc and visual_bert_coco, with a local checkpoint instead of the zoo's."""
    weights = tool.get_trained_run(model, run="source").checkpoints / "current.ckpt"
    preset = tool.preset(model, config=f"projects/{model}/configs/hateful_memes/{start}.yaml")
    words = (f"checkpoint.resume_file={weights}", "checkpoint.resume_zoo=null")
    trained = tool("train", preset, "--name", "pretrained", "--updates", "2", *words)
    run = tool.get_run(trained)
    assert "Copying model.bert" in run.log.read_text(encoding="utf-8"), "the pretrained weights were not used"
    assert start_updates(run) == [0], "pretrained weights bring no counts"
    checkpoints = ("best", str(run.checkpoints / "best.ckpt"), str(weights))
    best, own, began = (
        probabilities(tool("predict", "pretrained", "--checkpoint", checkpoint)) for checkpoint in checkpoints
    )
    assert best == own != began, "the run's own weights are predicted with, not those it began from"
