"""Files, options and outcomes of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.files import read_json
from mmf_win.paths import module_command
from mmf_win.protocol import read_events
from mmf_win.runs import attempts, plan
from mmf_win.runs.scores import val_auroc
from tests.endtoend.conftest import Tool, load_checkpoint, read_events_of_kind
from tests.worlds import tiny_mmf
from tests.worlds.web_server import WebServer

_SPAWNING_USER_CODE = """
import torch.multiprocessing
import torch.utils.data

torch.multiprocessing.set_start_method("spawn", force=True)
original_init = torch.utils.data.DataLoader.__init__

def initialize_worker(number):
    pass

def init_with_user_code(self, *args, **kwargs):
    original_init(self, *args, **(kwargs | {"worker_init_fn": initialize_worker}))

torch.utils.data.DataLoader.__init__ = init_with_user_code
"""


def test_local_bert_is_loaded_into_model_without_hub_requests(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from safetensors.torch import load_file

    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "MMF_USER_DIR"):  # user code may read any variable
        monkeypatch.delenv(name, raising=False)
    with WebServer.serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        preset = tool.write_preset("bert", offline=False)
        run = tool.train(preset, "--updates", "1", "optimizer.params.lr=0.0")
        tool("predict")
    assert not hub.requests
    groups = load_checkpoint(run)["optimizer"]["param_groups"]
    assert {group["weight_decay"] for group in groups} == {0.0}, "weight decay must be 0, as in the papers"
    saved_weights = load_file(tool.world.bert / "model.safetensors")
    encoder = {name.removeprefix("bert."): value for name, value in saved_weights.items() if name.startswith("bert.")}
    assert len(encoder) > 30
    for name, value in encoder.items():
        matches = [v for key, v in load_checkpoint(run)["model"].items() if key.endswith("." + name)]
        assert len(matches) == 1, name
        assert torch.equal(matches[0], value), name


@pytest.mark.wide
def test_spawned_data_loader_workers_find_mmf_and_patches(tool: Tool) -> None:
    """Windows has no fork: each worker is a new Python that unpickles MMF's dataset and user code."""
    user_dir = tool.folder / "spawning"
    user_dir.mkdir()
    (user_dir / "__init__.py").write_text(_SPAWNING_USER_CODE, encoding="utf-8")
    settings = {**tool.recipe_settings("vilbert"), "env": {"user_dir": str(user_dir)}}
    settings["training"]["num_workers"] = 2
    preset = tool.write_preset("vilbert", settings=settings)
    assert tool.run_for_exit_code("train", preset, "--updates", "2") == 3
    assert str(user_dir) in tool.errors and "--trust" in tool.errors
    assert not tool.save_dir.exists(), "no run may exist"
    assert tool("train", preset, "training.max_updates=2", "--trust")["updates"] == 2


def test_run_folder_records_request_events_and_outcome(tool: Tool) -> None:
    result = tool("train", tool.write_preset("vilbert"), "--updates", "4", "--name", "проба", "--seed", "3")
    run = tool.get_run(result)
    assert run.path.parent == tool.save_dir / "проба"
    request = run.request()
    assert (request.preset, request.training_number("seed"), request.training_number("max_updates")) == (
        "vilbert",
        3,
        4,
    )
    kinds = [event["kind"] for event in read_events(run.events)]
    assert kinds[:2] == ["run_started", "train_started"] and kinds[-1] == "run_ended"
    assert {"train", "val", "checkpoint"} <= set(kinds)
    assert read_json(run.outcome_file)["outcome"] == "ok"
    assert "Finished run" in run.log.read_text(encoding="utf-8")
    scores = [s for e in read_events(run.events) if (s := val_auroc(e)) is not None]
    assert result["best_auroc"] == max(scores)
    assert [r["id"] for r in tool("runs")] == [run.id]


def test_dry_run_prints_settings_and_records_nothing(tool: Tool) -> None:
    preset, tool = tool.write_preset("vilbert"), tool.with_world_copy("not read before")
    for record in (*tool.folder.rglob("SHA256SUMS*"), *tool.folder.rglob("mmfw-checked.json")):
        record.unlink()
    paths_before = {*tool.folder.rglob("*")}
    arguments = ("--updates", "4", "--precision", "fp32", "training.num_workers=0")
    settings = tool("train", preset, "--dry-run", *arguments)
    training = settings["training"]
    assert (training["max_updates"], training["num_workers"], training["evaluation_interval"]) == (4, 0, 1)
    assert settings["run_type"] == "train_val" and "mmfw" not in settings
    assert tool.run_for_exit_code("train", preset, "--dry-run", "training.batch_size=0") == 2
    for override in ("optimizer.params.betas=[0.9,1.0]", "scheduler.params.num_warmup_steps=-1"):
        assert tool.run_for_exit_code("train", preset, "--dry-run", override) == 2
    paths = {*tool.folder.rglob("*")}
    assert paths_before <= paths, "no file may be removed"
    assert {path.name for path in paths - paths_before} <= {"mmfw-keys.json"}, "only a cache may be written"
    result = tool("train", preset, *arguments)
    assert read_json(tool.get_run(result).path / "attempts" / "1" / "request.json")["settings"] == settings
    saved_settings = tool("runs", "show", "--config")
    assert saved_settings["mmfw"] == {"precision": "fp32", "updates": 4, "epochs": None}
    assert (saved_settings["training"]["max_updates"], saved_settings["training"]["num_workers"]) == (4, 0)


def test_unlabelled_test_set_is_predicted_without_scores(tool: Tool, tmp_path: Path) -> None:
    preset = tool.write_preset("vilbert")
    tool.world = tiny_mmf.copy_without_labels(tool.world, tmp_path / "unlabelled")
    assert tool("train", preset, "--updates", "1")["state"] == "done"
    result = tool("predict")
    assert "has no labels" in Path(result["report"]).read_text(encoding="utf-8")
    assert result["rows"] == tiny_mmf.SPLIT_SIZES["test_unseen"]
    assert result["auroc"] is None and result["accuracy"] is None


@pytest.mark.wide
def test_list_item_override_reaches_mmf_and_is_kept_on_resume(tool: Tool) -> None:
    """MMF 1.0.0rc10 ignores an override of an item in a list of strings."""
    from omegaconf import OmegaConf

    annotations = "dataset_config.hateful_memes.annotations"
    override = f"{annotations}.train[0]=hateful_memes/defaults/annotations/dev_seen.jsonl"
    overrides = ("training.experiment_name=lr=high", override)
    run = tool.train(tool.write_preset("vilbert"), "--epochs", "1", *overrides)
    config = OmegaConf.load(run.checkpoints / "config.yaml")
    assert config.training.experiment_name == "lr=high"
    assert OmegaConf.select(config, f"{annotations}.train") == [override.partition("=")[2]]
    [started] = read_events_of_kind(run, "train_started")
    assert started["max_updates"] == 1, "an epoch must be one batch of four rows"
    assert tool.run_for_exit_code("train", "--resume", "last", "--updates", "2", "training.no_such_key=1") == 2
    assert tool("train", "--resume", "last", "--updates", "2")["updates"] == 2
    config = OmegaConf.load(run.checkpoints / "config.yaml")
    assert OmegaConf.select(config, f"{annotations}.train") == [override.partition("=")[2]]
    assert tool("predict")["rows"] == tiny_mmf.SPLIT_SIZES["test_unseen"]

    assert tool.run_for_exit_code("predict", f"{annotations}.test[0]=own.jsonl") == 2
    assert "--memes FILE" in tool.errors and "--split NAME" in tool.errors


def test_training_for_epochs_reports_total_number_of_updates(tool: Tool) -> None:
    """14 rows are 4 batches. The preset sets another number of updates; epochs take precedence over it."""
    settings = tool.recipe_settings("bert")
    settings["training"]["max_updates"] = 22000
    overrides = ("training.max_epochs=2", "training.log_interval=1")
    result = tool("train", tool.write_preset("bert", settings=settings), *overrides)
    assert (result["updates"], result["max_updates"]) == (8, 8)
    run = tool.get_run(result)
    events = read_events_of_kind(run, "train_started") + read_events_of_kind(run, "train")
    assert {event["max_updates"] for event in events} == {8}
    assert tool.run_for_exit_code("runs", "show") == 0 and "8 of 8 updates" in tool.output
    run.events.write_bytes(b"")  # as if the run was killed before training began
    assert tool("runs")[0]["max_updates"] is None


@pytest.mark.wide
def test_validation_rows_with_one_label_cause_warning_with_hint(tool: Tool) -> None:
    annotations = tool.world.dataset / "annotations"
    rows = (annotations / "dev_unseen.jsonl").read_text(encoding="utf-8").splitlines()
    one_label_file = tool.folder / "one label.jsonl"
    one_label_file.write_text("\n".join(row for row in rows if '"label": 0' in row), encoding="utf-8")
    key = "dataset_config.hateful_memes.annotations.val[0]"
    run = tool.train(tool.write_preset("bert"), "--updates", "1", f"{key}={one_label_file}")
    warning_position, start_position = tool.errors.index("there is no AUROC"), tool.errors.index("training on")
    assert warning_position < start_position and f"{key}=FILE" in tool.errors
    assert not (run.checkpoints / "best.ckpt").exists()
    tool("train", "--resume", "last", "--updates", "2", f"{key}={annotations / 'dev_unseen.jsonl'}")
    assert "there is no AUROC" not in tool.errors and (run.checkpoints / "best.ckpt").exists()


@pytest.mark.wide
def test_rows_without_image_are_excluded_from_overridden_annotations(tool: Tool) -> None:
    annotation_file = tool.folder / "user.jsonl"
    rows = (tool.world.dataset / "annotations" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    row_without_image = '{"id": 99999, "img": "img/99999.png", "label": 0, "text": "gone"}'
    annotation_file.write_text("\n".join([*rows[:7], row_without_image]), encoding="utf-8")
    arguments = (
        f"dataset_config.hateful_memes.annotations.train[0]={annotation_file}",
        "--epochs",
        "1",
        "--allow-missing",
    )
    result = tool("train", tool.write_preset("image"), *arguments, "--batch-size", "7")
    assert result["updates"] == 1
    assert "user 1 of 8" in tool.errors


@pytest.mark.parametrize(
    ("overrides", "exit_code", "message"),
    [
        (("training.no_such_key=1",), 2, "no key training.no_such_key"),
        (("training.early_stop=True",), 2, "training.early_stop.enabled"),
        (("checkpoint.resume_file=nowhere.ckpt",), 3, "nowhere.ckpt"),
        (("checkpoint.resume_zoo=visual_bert.pretrained.cocoo",), 3, "visual_bert.pretrained.cocoo"),
        (("dataset_config.hateful_memes.annotations.val[0]=nowhere.jsonl",), 3, "nowhere.jsonl"),
    ],
)
def test_invalid_override_is_rejected_before_run_is_created(
    tool: Tool, overrides: tuple[str, ...], exit_code: int, message: str
) -> None:
    assert tool.run_for_exit_code("train", tool.write_preset("vilbert"), *overrides) == exit_code
    assert message in tool.errors
    assert "Traceback" not in tool.errors
    assert not tool.save_dir.exists(), "no run may exist"


def test_unusable_cache_folder_is_rejected_before_anything_starts(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tool.folder)
    cache = tool.folder / "file" / "cache"
    cache.parent.touch()
    monkeypatch.setenv("MMF_CACHE_DIR", str(cache))
    sweep = tool.folder / "sweep.yaml"
    sweep.write_text("template: {t: 'mmfw train {p}'}\n---\np: any\n", encoding="utf-8")
    preset = tool.write_preset("vilbert")
    for arguments in (("train", preset), ("train", preset, "--dry-run"), ("sweep", "run", str(sweep), "-r", "cpu")):
        assert tool.run_for_exit_code(*arguments) == 3
        assert str(cache) in tool.errors and "MMF_CACHE_DIR" in tool.errors
    assert not tool.save_dir.exists()


@pytest.mark.wide
def test_python_variables_that_break_worker_are_ignored(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    harmful = {"PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "error", "PYTHONTRACEMALLOC": "5"}
    for name, value in harmful.items():
        monkeypatch.setenv(name, value)
    plan._warn_about_environment.cache_clear()
    monkeypatch.setattr(attempts, "WORKER_COMMAND", module_command("mmf_win.worker.entry"))
    assert tool.run_for_exit_code("train", tool.write_preset("vilbert"), "--updates", "1") == 0
    assert "ignoring PYTHONOPTIMIZE, PYTHONTRACEMALLOC, PYTHONWARNINGS" in tool.errors
