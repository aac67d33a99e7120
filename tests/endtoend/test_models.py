"""Every Hateful Memes model trains, resumes and predicts through ``mmfw``, at a tiny size."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from mmf_win.dataset.annotations import read_rows
from mmf_win.paths import is_portable
from mmf_win.protocol import read_events
from tests.endtoend.conftest import Tool
from tests.worlds import tiny_mmf
from tests.worlds.event_files import steps
from tests.worlds.recipes import recipes

pytestmark = pytest.mark.torch

MODELS = sorted(recipes())


def train_resume_predict(tool: Tool, preset: str) -> None:
    """Three updates, two more, and a prediction of the test split."""
    trained = tool("train", preset, "--updates", "3", "--seed", "1")
    assert (trained["state"], trained["updates"], trained["max_updates"]) == ("done", 3, 3)

    resumed = tool("train", "--resume", "last", "--updates", "5")
    assert resumed["id"] == trained["id"]
    assert (resumed["state"], resumed["updates"]) == ("done", 5)
    starts = [e for e in read_events(tool.run_of(resumed).events) if e["kind"] == "train_started"]
    assert [start["update"] for start in starts] == [0, 3], "the second attempt resumes where the first ended"

    assert list(steps(tool.run_of(resumed).path, "train/loss")) == [1, 2, 3, 4, 5]
    assert steps(tool.run_of(resumed).path, "val/roc_auc")

    predicted = tool("predict", "--no-report")
    assert not list(tool.run_of(resumed).reports.glob("*.html"))
    rows = read_rows(tool.world.dataset / "annotations" / "test_unseen.jsonl")
    with Path(predicted["csv"]).open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [int(row["id"]) for row in written] == [row.id for row in rows]
    assert all(0 <= float(row["proba"]) <= 1 and row["label"] in "01" for row in written)
    if rows[0].label is not None:
        assert 0 <= predicted["auroc"] <= 1
        assert 0 <= predicted["accuracy"] <= 1
    for path in tool.run_of(resumed).path.rglob("*"):
        assert is_portable(path.name), f"{path.name} is not legal on Windows"


@pytest.mark.parametrize("name", MODELS)
def test_trains_resumes_and_predicts(tool: Tool, name: str) -> None:
    train_resume_predict(tool, tool.preset(name))


@pytest.mark.usefixtures("only_rc12")
@pytest.mark.parametrize("name", ["lxmert", "vilt"])
def test_what_only_rc12_has_predicts_memes_without_labels(tool: Tool, tmp_path: Path, name: str) -> None:
    preset = tool.preset(name)
    tool.world = tiny_mmf.unlabel(tool.world, tmp_path / "unlabelled")
    train_resume_predict(tool, preset)


@pytest.mark.parametrize(("model", "start"), [("vilbert", "from_cc"), ("visual_bert", "from_coco")])
def test_a_model_starts_from_weights_pretrained_elsewhere(tool: Tool, model: str, start: str) -> None:
    """As the presets vilbert_cc and visual_bert_coco do, with a checkpoint on disk, not the zoo's."""
    source = tool("train", tool.preset(model), "--updates", "1", "--seed", "7")
    weights = tool.run_of(source).checkpoints / "current.ckpt"
    preset = tool.preset(model, config=f"projects/{model}/configs/hateful_memes/{start}.yaml")
    words = (f"checkpoint.resume_file={weights}", "checkpoint.resume_zoo=None")
    trained = tool("train", preset, "--name", "pretrained", "--updates", "2", *words)
    run = tool.run_of(trained)
    assert "Copying model.bert" in run.log.read_text(encoding="utf-8"), "the pretrained weights were not used"
    first = next(e for e in read_events(run.events) if e["kind"] == "train_started")
    assert first["update"] == 0, "pretrained weights bring no counts"

    def probabilities(checkpoint: str) -> list[str]:
        csv_path = Path(tool("predict", "pretrained", "--checkpoint", checkpoint)["csv"])
        return [line.split(",")[1] for line in csv_path.read_text(encoding="utf-8").splitlines()]

    best = probabilities("best")
    assert best == probabilities(str(run.checkpoints / "best.ckpt"))
    assert best != probabilities(str(weights)), (
        "the run's own weights are predicted with, not those it began from"
    )


@pytest.mark.usefixtures("only_rc12")
def test_mmf_transformer_trains_resumes_and_predicts(tool: Tool) -> None:
    whole = {"layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1}
    resnet = {"pretrained": False, "pool_type": "avg", "num_output_features": 1}
    words = {"type": "text", "key": "text", "position_dim": tiny_mmf.POSITIONS, "segment_id": 0}
    picture = {"type": "image", "key": "image", "position_dim": 1, "segment_id": 1}
    size: dict[str, Any] = {
        "transformer_base": tiny_mmf.BERT,
        "backend": {
            "params": {
                "hidden_size": tiny_mmf.HIDDEN,
                "num_hidden_layers": tiny_mmf.LAYERS,
                "num_attention_heads": tiny_mmf.HEADS,
                "max_position_embeddings": tiny_mmf.POSITIONS,
            }
        },
        "heads": [{"type": "mlp", "hidden_size": tiny_mmf.HIDDEN, "num_labels": 2}],
        "modalities": [
            {**words, **whole, "embedding_dim": tiny_mmf.HIDDEN},
            {
                **picture,
                **whole,
                "embedding_dim": tiny_mmf.FEATURES,
                "encoder": {"type": "resnet152", "params": resnet},
            },
        ],
    }
    settings = {**tool.settings("mmbt"), "model_config": {"mmf_transformer": size}}
    config = "projects/hateful_memes/configs/mmf_transformer/defaults.yaml"
    train_resume_predict(tool, tool.preset("mmbt", model="mmf_transformer", config=config, settings=settings))
