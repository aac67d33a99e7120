"""Every Hateful Memes model trains, goes on and predicts through ``mmfw``, at a tiny size."""

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

pytestmark = pytest.mark.torch

MODELS = sorted(tiny_mmf.recipes(tiny_mmf.TinyWorld(Path("nowhere"))))


def train_resume_predict(tool: Tool, preset: str) -> None:
    """Three updates, two more, and a prediction of the test split."""
    trained = tool("train", preset, "--updates", "3", "--seed", "1")
    assert (trained["state"], trained["updates"], trained["max_updates"]) == ("done", 3, 3)

    resumed = tool("train", "--resume", "last", "--updates", "5")
    assert resumed["id"] == trained["id"]
    assert (resumed["state"], resumed["updates"]) == ("done", 5)
    starts = [e for e in read_events(tool.run_of(resumed).events) if e["kind"] == "train_started"]
    assert [start["update"] for start in starts] == [0, 3], "the second attempt goes on where the first ended"

    predicted = tool("predict")
    rows = read_rows(tool.world.dataset / "annotations" / "test.jsonl")
    with Path(predicted["csv"]).open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [int(row["id"]) for row in written] == [row.id for row in rows]
    assert all(0 <= float(row["proba"]) <= 1 and row["label"] in "01" for row in written)
    assert 0 <= predicted["auroc"] <= 1
    assert 0 <= predicted["accuracy"] <= 1
    for path in tool.run_of(resumed).path.rglob("*"):
        assert is_portable(path.name), f"{path.name} is not legal on Windows"


@pytest.mark.parametrize("name", MODELS)
def test_trains_resumes_and_predicts(tool: Tool, name: str) -> None:
    train_resume_predict(tool, tool.preset(name))


def test_vilbert_starts_from_weights_pretrained_elsewhere(tool: Tool) -> None:
    """As the preset vilbert_cc does, with a checkpoint on disk in the place of the zoo's."""
    source = tool("train", tool.preset("vilbert"), "--updates", "1", "--seed", "7")
    weights = tool.run_of(source).checkpoints / "current.ckpt"
    preset = tool.preset("vilbert", config="projects/vilbert/configs/hateful_memes/from_cc.yaml")
    train_resume_predict_from(tool, preset, weights)


def train_resume_predict_from(tool: Tool, preset: str, weights: Path) -> None:
    start = (f"checkpoint.resume_file={weights}", "checkpoint.resume_zoo=None")
    trained = tool("train", preset, "--name", "from_cc", "--updates", "2", *start)
    log = tool.run_of(trained).log.read_text(encoding="utf-8")
    assert "Copying model.bert" in log, "the pretrained weights were not used"
    events = read_events(tool.run_of(trained).events)
    first = next(e for e in events if e["kind"] == "train_started")
    assert first["update"] == 0, "pretrained weights bring no counts"
    assert tool("predict", "from_cc")["rows"] == tiny_mmf.SPLITS["test"]


@pytest.fixture
def only_rc12(mmf_version: str) -> None:
    if mmf_version != "rc12":
        pytest.skip("mmf_transformer has no Hateful Memes configuration before 1.0.0rc12")


@pytest.mark.usefixtures("only_rc12")
def test_mmf_transformer_trains_resumes_and_predicts(tool: Tool) -> None:
    bert = str(tool.world.bert)
    settings: dict[str, Any] = tiny_mmf.recipes(tool.world)["mmbt"].settings
    preset = tool.preset(
        "mmbt",
        model="mmf_transformer",
        config="projects/hateful_memes/configs/mmf_transformer/defaults.yaml",
        settings={
            **settings,
            "model_config": {"mmf_transformer": {"transformer_base": bert, "backend": {"params": {}}}},
            "training": {"batch_size": 4, "num_workers": 0},
        },
    )
    train_resume_predict(tool, preset)
