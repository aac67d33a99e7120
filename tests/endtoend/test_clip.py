"""CLIP behind MMF: towers that are frozen see each meme once, and what they say does not depend on how."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.dataset.annotations import read_annotations
from tests.endtoend.conftest import SetFaults, Tool, assert_same_weights, load_checkpoint, logged_losses, probabilities
from tests.worlds import hostile_archives

WORDS = ("--updates", "6", "--seed", "3", "training.log_interval=1", "optimizer.params.lr=0.01")

# Values that are refused by their keys, and values at the limits of what is allowed.
SENSELESS = (
    *("unfreeze=-1", "unfreeze=1.5", "unfreeze=true", "projection_dim=0", "num_layers=-1", "fusion=cross"),
    *("dropout=[0.1,2,0]", "dropout=[0.1]", "dropout=0.1", "dropout=[0,x,0]"),
)
SOUND = ("unfreeze=0", "projection_dim=1", "num_layers=0", "fusion=align", "dropout=[0,0.5,1]")

# In one worker, writes what is said of each value in values.json to said.json.
EACH_VALUE = """
import json
from pathlib import Path
from omegaconf import OmegaConf
from mmf_win.errors import UsageError
from mmf_win.worker.models import clip

def said_of(config, value):
    try:
        changes = OmegaConf.from_dotlist([value])
        clip._require_valid_config(OmegaConf.merge(config, {"fusion": "concat"}, changes))
    except UsageError as error:
        return str(error)
    return ""

def build(self, build=clip.Clip.build):
    values = json.loads(Path(__file__).with_name("values.json").read_text(encoding="utf-8"))
    said = [said_of(self.config, value) for value in values]
    Path(__file__).with_name("said.json").write_text(json.dumps(said), encoding="utf-8")
    build(self)

clip.Clip.build = build
"""


def outputs(tool: Tool) -> list[Path]:
    """The kept outputs of towers."""
    return sorted((tool.world.cache / "mmfw-outputs").glob("*/*"))


@pytest.fixture
def fresh(tool: Tool) -> Tool:
    """The tool beside a world in which nothing is kept yet."""
    fresh = tool.with_world_copy("fresh")
    shutil.rmtree(fresh.world.cache / "mmfw-outputs", ignore_errors=True)
    return fresh


def test_training_is_the_same_with_any_cache_and_through_a_stop(
    fresh: Tool, set_faults: SetFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMF_CACHE_DIR", str(fresh.world.cache))
    preset = fresh.preset("clip")
    monkeypatch.setenv("MMFW_IMAGE_CACHE", "off")
    without = fresh.train(preset, "--name", "without", *WORDS)
    assert outputs(fresh) == []
    monkeypatch.setenv("MMFW_IMAGE_CACHE", "on")
    first = fresh.train(preset, "--name", "first", *WORDS)
    kept = outputs(fresh)
    rows = [
        row
        for name in ("train", "dev_unseen")
        for row in read_annotations(fresh.world.dataset / "annotations" / f"{name}.jsonl")
    ]
    assert len(kept) == len(rows) + len({row.text for row in rows})

    written = [path.stat().st_mtime_ns for path in kept[2:]]
    hostile_archives.flip_byte(kept[0], 20)
    kept[1].write_bytes(b"")
    second = fresh.train(preset, "--name", "second", *WORDS)
    assert [path.stat().st_mtime_ns for path in kept[2:]] == written
    set_faults({"at": "stepped", "do": "stop", "update": 3})
    assert fresh.run_for_exit_code("train", preset, "--name", "stopped", *WORDS) == 130
    shutil.rmtree(fresh.world.cache / "mmfw-outputs")
    stopped = fresh.train("--resume", "stopped")
    for other in (first, second, stopped):
        assert logged_losses(other) == logged_losses(without)
        assert_same_weights(other, without)


def test_a_prediction_does_not_depend_on_the_batch_and_takes_own_memes(tool: Tool) -> None:
    tool.get_trained_run("clip")
    together = probabilities(tool("predict", "--no-report"))
    alone = probabilities(tool("predict", "--no-report", "--batch-size", "1"))
    assert alone == pytest.approx(together, abs=1e-6)
    row = read_annotations(tool.world.dataset / "annotations" / "test_unseen.jsonl")[0]
    image = tool.world.dataset / "images" / row.img
    meme = tool("predict", "--image", str(image), "--text", row.text)
    assert meme["proba"] == pytest.approx(together[0], abs=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("unfreeze", "fusion"), [(0, "concat"), (1, "align"), (2, "align")], ids=["nothing", "the last", "all"]
)
def test_of_the_towers_only_the_last_layers_train_that_are_unfrozen(tool: Tool, unfreeze: int, fusion: str) -> None:
    from safetensors.torch import load_file

    words = (f"model_config.clip.unfreeze={unfreeze}", f"model_config.clip.fusion={fusion}")
    run = tool.train(tool.preset("clip"), "--updates", "3", "optimizer.params.lr=0.01", *words)
    before, after = load_file(tool.world.clip / "model.safetensors"), load_checkpoint(run)["model"]
    shared = {name.replace(".model.", "_model_", 1): name for name in after if ".model." in name}
    changed = set()
    for name, of_run in shared.items():
        tower, _, rest = name.partition("_model_")
        original = before[f"{'vision' if tower == 'image' else 'text'}_model.{rest}"]
        if not original.equal(after[of_run]):
            changed.add(name)
    assert bool(changed) == bool(unfreeze)
    assert any("embedding" in name or ".layers.0." in name for name in changed) == (unfreeze == 2)
    assert unfreeze == 0 or {name.partition("_")[0] for name in changed} == {"image", "text"}


def test_what_the_configuration_cannot_mean_is_said(tool: Tool) -> None:
    folder, preset = tool.folder / "each_value", tool.preset("clip")
    folder.mkdir()
    (folder / "__init__.py").write_text(EACH_VALUE, encoding="utf-8")
    (folder / "values.json").write_text(json.dumps([*SENSELESS, *SOUND]), encoding="utf-8")
    words = ("train", preset, "--updates", "1", "--trust", f"env.user_dir={folder}")
    assert tool.run_for_exit_code(*words, "model_config.clip.fusion=cross") == 2
    assert "model_config.clip.fusion cannot be 'cross'" in tool.errors
    said = json.loads((folder / "said.json").read_text(encoding="utf-8"))
    keys = [value.partition("=")[0] for value in SENSELESS]
    assert [text.partition(" cannot be ")[0] for text in said] == [
        *(f"model_config.clip.{key}" for key in keys),
        *([""] * len(SOUND)),
    ]
    words = ("train", preset, "--updates", "1", f"model_config.clip.clip_model_name={tool.folder / 'none'}")
    assert tool.run_for_exit_code(*words) == 3
    assert str(tool.folder / "none") in tool.errors


@pytest.mark.wide
def test_another_clip_has_outputs_of_its_own_and_one_without_all_weights_is_refused(
    fresh: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file, save_file

    monkeypatch.setenv("MMF_CACHE_DIR", str(fresh.world.cache))
    own, words = fresh.folder / "own @ clip", ("--updates", "2", "--seed", "3", "training.log_interval=1")
    shutil.copytree(fresh.world.clip, own)
    preset, named = fresh.preset("clip"), f"model_config.clip.clip_model_name={own}"
    first = fresh.train(preset, "--name", "first", *words)
    assert logged_losses(fresh.train(preset, "--name", "copied", *words, named)) == logged_losses(first)
    config = json.loads((own / "config.json").read_text("utf-8"))
    config["vision_config"]["hidden_act"] = "relu"
    (own / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert logged_losses(fresh.train(preset, "--name", "other", *words, named)) != logged_losses(first)

    weights = load_file(own / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "text_model.encoder" not in name}
    save_file(kept, own / "model.safetensors", {"format": "pt"})
    assert fresh.run_for_exit_code("train", preset, *words, named) == 3
    assert f"{own}: tensors of its configuration are missing" in fresh.errors
    (own / "model.safetensors").unlink()
    assert fresh.run_for_exit_code("train", preset, *words, named) == 3
    assert f"missing: {own / 'model.safetensors'}" in fresh.errors


@pytest.mark.wide
def test_the_demo_trains_a_tiny_clip_that_predicts_memes_of_ones_own(tool: Tool) -> None:
    assert main(["demo", "--model", "clip", "--dir", str(tool.folder / "демо"), "--json"]) == 0
    result = json.loads(tool.read_output()[0])
    assert result["run"].startswith("demo_clip/")
    image = next(Path(result["data_dir"]).rglob("*.png"))
    places = ["--data-dir", result["data_dir"], "--save-dir", result["save_dir"]]
    assert main(["predict", "--image", str(image), "--text", "look how many", *places]) == 0
    assert 0 <= float(tool.read_output()[0]) <= 1
