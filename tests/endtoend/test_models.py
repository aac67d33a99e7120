"""Training, resuming and prediction of every Hateful Memes model through ``mmfw``, at a tiny size."""

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
    """Train three updates and two more, predict the test split, and expect the same probabilities with --fast."""
    trained = tool("train", preset, "--updates", "3", "--seed", "1")
    assert (trained["state"], trained["updates"], trained["max_updates"]) == ("done", 3, 3)

    resumed = tool("train", "--resume", "last", "--updates", "5")
    assert resumed["id"] == trained["id"]
    assert (resumed["state"], resumed["updates"]) == ("done", 5)
    assert start_updates(tool.get_run(resumed)) == [0, 3], "the second attempt must resume at the end of the first"

    assert list(read_tensorboard_scalars(tool.get_run(resumed).path, "train/loss")) == [1, 2, 3, 4, 5]
    assert read_tensorboard_scalars(tool.get_run(resumed).path, "val/auroc")

    predicted = tool("predict", "--no-report")
    assert not list(tool.get_run(resumed).reports.glob("*.html"))
    rows = read_annotations(tool.world.dataset / "annotations" / "test_unseen.jsonl")
    predictions = read_predictions(Path(predicted["csv"]))
    assert [int(row.id) for row in predictions] == [row.id for row in rows]
    assert all(0 <= row.proba <= 1 and row.label in (0, 1) for row in predictions)
    if rows[0].label is not None:
        assert 0 <= predicted["auroc"] <= 1
        assert 0 <= predicted["accuracy"] <= 1
    for path in tool.get_run(resumed).path.rglob("*"):
        assert is_portable(path.name), f"the name {path.name} must be legal on Windows"
    predicted_fast = tool("predict", "--no-report", "--fast")
    assert probabilities(predicted_fast) == pytest.approx(probabilities(predicted), abs=1e-5)


@pytest.mark.parametrize("name", mark_wide(sorted(tiny_mmf.recipes()), except_for=("cnn_lstm", "mmbt", "vilbert")))
def test_model_trains_resumes_and_predicts_in_full_and_half_precision(
    tool: Tool, set_faults: SetFaults, name: str
) -> None:
    """Short texts are padded to 32 tokens, or to 8 with --fast."""
    settings = tool.recipe_settings(name)
    processors = settings.get("dataset_config", {}).get("hateful_memes", {}).get("processors", {})
    if "max_seq_length" in processors.get("text_processor", {}).get("params", {}):
        processors["text_processor"]["params"]["max_seq_length"] = 32
    train_resume_predict(tool, tool.write_preset(name, settings=settings))

    set_faults({"at": "hardware", "do": "half"})
    precisions = ["bf16", "fp16"]
    if name == "cnn_lstm":  # PyTorch has no LSTM in fp16 on CPUs, and in bf16 only with hardware support
        import torch

        precisions = ["bf16"] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else []
    for updates, precision in enumerate(precisions, start=6):
        resumed = tool("train", "--resume", "last", "--precision", precision, "--updates", str(updates))
        assert f"resuming in {precision}" in tool.errors
        assert read_events_of_kind(tool.get_run(resumed), "train_started")[-1]["precision"] == precision
    full_precision = probabilities(tool("predict", "--no-report", "--precision", "fp32"))
    for precision in precisions:
        predicted = tool("predict", "--no-report", "--precision", precision)
        assert predicted["members"][0]["precision"] == precision
        assert probabilities(predicted) == pytest.approx(full_precision, abs=0.03)


@pytest.mark.usefixtures("only_rc12")
@pytest.mark.parametrize("name", ["lxmert", "vilt", "mmf_transformer"])
def test_model_of_rc12_only_predicts_memes_without_labels(tool: Tool, tmp_path: Path, name: str) -> None:
    preset = tool.write_preset(name)
    tool.world = tiny_mmf.copy_without_labels(tool.world, tmp_path / "unlabelled")
    train_resume_predict(tool, preset)
    assert ("also reads padding" in tool.errors) == (name == "lxmert"), "--fast must warn only for LXMERT"


@pytest.mark.wide
@pytest.mark.parametrize(("model", "start"), [("vilbert", "from_cc"), ("visual_bert", "from_coco")])
def test_model_starts_from_pretrained_weights(tool: Tool, model: str, start: str) -> None:
    """Presets are like vilbert_cc and visual_bert_coco, with a local checkpoint instead of the zoo's."""
    weights = tool.get_trained_run(model, run="source").checkpoints / "current.ckpt"
    preset = tool.write_preset(model, config=f"projects/{model}/configs/hateful_memes/{start}.yaml")
    overrides = (f"checkpoint.resume_file={weights}", "checkpoint.resume_zoo=null")
    trained = tool("train", preset, "--name", "pretrained", "--updates", "2", *overrides)
    run = tool.get_run(trained)
    assert "Copying model.bert" in run.log.read_text(encoding="utf-8"), "the pretrained weights must be used"
    assert start_updates(run) == [0], "the run must start at update 0"
    checkpoints = ("best", str(run.checkpoints / "best.ckpt"), str(weights))
    selected_by_name, selected_by_path, pretrained = (
        probabilities(tool("predict", "pretrained", "--checkpoint", checkpoint)) for checkpoint in checkpoints
    )
    assert selected_by_name == selected_by_path != pretrained, "predictions must use the trained weights"
