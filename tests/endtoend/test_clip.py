"""CLIP in MMF: its frozen towers encode each meme once, and caching does not change the results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.dataset.annotations import read_annotations
from tests.endtoend.conftest import SetFaults, Tool, assert_same_weights, load_checkpoint, logged_losses, probabilities
from tests.worlds import hostile_archives

TRAIN_OPTIONS = ("--updates", "6", "--seed", "3", "training.log_interval=1", "optimizer.params.lr=0.01")

# Values that are refused with the names of their keys, and allowed values at the limits.
INVALID_VALUES = (
    *("unfreeze=-1", "unfreeze=1.5", "unfreeze=true", "projection_dim=0", "num_layers=-1", "fusion=cross"),
    *("dropout=[0.1,2,0]", "dropout=[0.1]", "dropout=0.1", "dropout=[0,x,0]"),
)
VALID_VALUES = ("unfreeze=0", "projection_dim=1", "num_layers=0", "fusion=align", "dropout=[0,0.5,1]")

# Writes the error message for each value of values.json to messages.json, in one worker.
CHECK_EACH_VALUE = """
import json
from pathlib import Path
from omegaconf import OmegaConf
from mmf_win.errors import UsageError
from mmf_win.worker.models import clip

def find_message(config, value):
    try:
        changes = OmegaConf.from_dotlist([value])
        clip._require_valid_config(OmegaConf.merge(config, {"fusion": "concat"}, changes))
    except UsageError as error:
        return str(error)
    return ""

def build(self, build=clip.Clip.build):
    values = json.loads(Path(__file__).with_name("values.json").read_text(encoding="utf-8"))
    messages = [find_message(self.config, value) for value in values]
    Path(__file__).with_name("messages.json").write_text(json.dumps(messages), encoding="utf-8")
    build(self)

clip.Clip.build = build
"""


def list_cached_outputs(tool: Tool) -> list[Path]:
    """Return the cached outputs of the towers."""
    return sorted((tool.world.cache / "mmfw-outputs").glob("*/*"))


@pytest.fixture
def uncached_tool(tool: Tool) -> Tool:
    """Return the tool with a copy of the world that has no cached outputs."""
    uncached_tool = tool.with_world_copy("fresh")
    shutil.rmtree(uncached_tool.world.cache / "mmfw-outputs", ignore_errors=True)
    return uncached_tool


def test_training_results_are_the_same_with_any_cache_and_after_a_stop(
    uncached_tool: Tool, set_faults: SetFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMF_CACHE_DIR", str(uncached_tool.world.cache))
    preset = uncached_tool.write_preset("clip")
    monkeypatch.setenv("MMFW_IMAGE_CACHE", "off")
    uncached_run = uncached_tool.train(preset, "--name", "without", *TRAIN_OPTIONS)
    assert list_cached_outputs(uncached_tool) == []
    monkeypatch.setenv("MMFW_IMAGE_CACHE", "on")
    first_run = uncached_tool.train(preset, "--name", "first", *TRAIN_OPTIONS)
    cached = list_cached_outputs(uncached_tool)
    rows = [
        row
        for name in ("train", "dev_unseen")
        for row in read_annotations(uncached_tool.world.dataset / "annotations" / f"{name}.jsonl")
    ]
    assert len(cached) == len(rows) + len({row.text for row in rows})

    write_times = [path.stat().st_mtime_ns for path in cached[2:]]
    hostile_archives.flip_byte(cached[0], 20)
    cached[1].write_bytes(b"")
    second_run = uncached_tool.train(preset, "--name", "second", *TRAIN_OPTIONS)
    assert [path.stat().st_mtime_ns for path in cached[2:]] == write_times
    set_faults({"at": "stepped", "do": "stop", "update": 3})
    assert uncached_tool.run_for_exit_code("train", preset, "--name", "stopped", *TRAIN_OPTIONS) == 130
    shutil.rmtree(uncached_tool.world.cache / "mmfw-outputs")
    resumed_run = uncached_tool.train("--resume", "stopped")
    for run in (first_run, second_run, resumed_run):
        assert logged_losses(run) == logged_losses(uncached_run)
        assert_same_weights(run, uncached_run)


def test_prediction_does_not_depend_on_batch_size_and_accepts_user_memes(tool: Tool) -> None:
    tool.get_trained_run("clip")
    expected = probabilities(tool("predict", "--no-report"))
    one_by_one = probabilities(tool("predict", "--no-report", "--batch-size", "1"))
    assert one_by_one == pytest.approx(expected, abs=1e-6)
    row = read_annotations(tool.world.dataset / "annotations" / "test_unseen.jsonl")[0]
    image = tool.world.dataset / "images" / row.img
    meme = tool("predict", "--image", str(image), "--text", row.text)
    assert meme["proba"] == pytest.approx(expected[0], abs=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("unfreeze", "fusion"), [(0, "concat"), (1, "align"), (2, "align")], ids=["none", "last", "all"]
)
def test_only_the_unfrozen_last_layers_of_the_towers_are_trained(tool: Tool, unfreeze: int, fusion: str) -> None:
    from safetensors.torch import load_file

    overrides = (f"model_config.clip.unfreeze={unfreeze}", f"model_config.clip.fusion={fusion}")
    run = tool.train(tool.write_preset("clip"), "--updates", "3", "optimizer.params.lr=0.01", *overrides)
    before, after = load_file(tool.world.clip / "model.safetensors"), load_checkpoint(run)["model"]
    shared = {name.replace(".model.", "_model_", 1): name for name in after if ".model." in name}
    changed = set()
    for name, run_name in shared.items():
        tower, _, rest = name.partition("_model_")
        original = before[f"{'vision' if tower == 'image' else 'text'}_model.{rest}"]
        if not original.equal(after[run_name]):
            changed.add(name)
    assert bool(changed) == bool(unfreeze)
    assert any("embedding" in name or ".layers.0." in name for name in changed) == (unfreeze == 2)
    assert unfreeze == 0 or {name.partition("_")[0] for name in changed} == {"image", "text"}


def test_invalid_values_of_the_configuration_are_reported(tool: Tool) -> None:
    folder, preset = tool.folder / "each_value", tool.write_preset("clip")
    folder.mkdir()
    (folder / "__init__.py").write_text(CHECK_EACH_VALUE, encoding="utf-8")
    (folder / "values.json").write_text(json.dumps([*INVALID_VALUES, *VALID_VALUES]), encoding="utf-8")
    command = ("train", preset, "--updates", "1", "--trust", f"env.user_dir={folder}")
    assert tool.run_for_exit_code(*command, "model_config.clip.fusion=cross") == 2
    assert "model_config.clip.fusion cannot be 'cross'" in tool.errors
    messages = json.loads((folder / "messages.json").read_text(encoding="utf-8"))
    keys = [value.partition("=")[0] for value in INVALID_VALUES]
    assert [message.partition(" cannot be ")[0] for message in messages] == [
        *(f"model_config.clip.{key}" for key in keys),
        *([""] * len(VALID_VALUES)),
    ]
    command = ("train", preset, "--updates", "1", f"model_config.clip.clip_model_name={tool.folder / 'none'}")
    assert tool.run_for_exit_code(*command) == 3
    assert str(tool.folder / "none") in tool.errors


@pytest.mark.wide
def test_other_clip_has_separate_outputs_and_is_refused_if_weights_are_missing(
    uncached_tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file, save_file

    monkeypatch.setenv("MMF_CACHE_DIR", str(uncached_tool.world.cache))
    other_clip, options = (
        uncached_tool.folder / "own @ clip",
        ("--updates", "2", "--seed", "3", "training.log_interval=1"),
    )
    shutil.copytree(uncached_tool.world.clip, other_clip)
    preset, override = uncached_tool.write_preset("clip"), f"model_config.clip.clip_model_name={other_clip}"
    first_run = uncached_tool.train(preset, "--name", "first", *options)
    assert logged_losses(uncached_tool.train(preset, "--name", "copied", *options, override)) == logged_losses(
        first_run
    )
    config = json.loads((other_clip / "config.json").read_text("utf-8"))
    config["vision_config"]["hidden_act"] = "relu"
    (other_clip / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert logged_losses(uncached_tool.train(preset, "--name", "other", *options, override)) != logged_losses(first_run)

    weights = load_file(other_clip / "model.safetensors")
    incomplete = {name: value for name, value in weights.items() if "text_model.encoder" not in name}
    save_file(incomplete, other_clip / "model.safetensors", {"format": "pt"})
    assert uncached_tool.run_for_exit_code("train", preset, *options, override) == 3
    assert f"{other_clip}: tensors of its configuration are missing" in uncached_tool.errors
    (other_clip / "model.safetensors").unlink()
    assert uncached_tool.run_for_exit_code("train", preset, *options, override) == 3
    assert f"missing: {other_clip / 'model.safetensors'}" in uncached_tool.errors


@pytest.mark.wide
def test_demo_trains_a_tiny_clip_that_predicts_user_memes(tool: Tool) -> None:
    assert main(["demo", "--model", "clip", "--dir", str(tool.folder / "демо"), "--json"]) == 0
    result = json.loads(tool.read_output()[0])
    assert result["run"].startswith("demo_clip/")
    image = next(Path(result["data_dir"]).rglob("*.png"))
    path_options = ["--data-dir", result["data_dir"], "--save-dir", result["save_dir"]]
    assert main(["predict", "--image", str(image), "--text", "look how many", *path_options]) == 0
    assert 0 <= float(tool.read_output()[0]) <= 1
