"""Run requests over the life of a run, and the settings of an attempt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmf_win.errors import DataError
from mmf_win.paths import MmfPaths
from mmf_win.runs.folder import Run
from mmf_win.runs.plan import RunJob, plan_attempt
from mmf_win.runs.request import CommandOptions, MmfwSettings, RunRequest
from mmf_win.upstream.install import MmfInstall
from tests.worlds.memes import RUN_SPLITS
from tests.worlds.mmf_sources import write_minimal_mmf
from tests.worlds.run_requests import make_run_request


def merge_options(earlier: RunRequest, **options: Any) -> RunRequest:
    return earlier.merged_with(CommandOptions(**options).settings)


def test_resumed_run_keeps_its_request(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "mmbt_grid")
    request = make_run_request(model="mmbt", splits=RUN_SPLITS, updates=500, seed=3, keep=2)
    run.save_request(request)
    assert run.request() == request
    resumed = merge_options(run.request(), updates=900)
    assert (resumed.training_number("max_updates"), resumed.training_number("seed"), resumed.mmfw_settings.keep) == (
        900,
        3,
        2,
    )


def test_later_settings_override_single_keys_and_whole_lists() -> None:
    before = make_run_request(settings={"a": {"b": 1, "c": 1}, "d": [1, 2]}, overrides=["a.c=2"])
    after = before.merged_with({"a": {"b": 3}, "d": [4]})
    assert after.settings == {"a": {"b": 3, "c": 2}, "d": [4]}
    assert after.user_settings == {"a.b": 3, "a.c": 2, "d": [4]}, "settings of the preset must not be included"


def test_last_precision_wins() -> None:
    request = make_run_request(overrides=["training.fp16=True"])
    resumed = merge_options(request, precision="bf16")
    assert resumed.mmfw_settings.precision == "bf16", "the option must override MMF's key in an attempt"
    assert resumed.merged_with({"training": {"fp16": True}}).mmfw_settings.precision is None
    assert resumed.merged_with({"training": {"seed": 1}}).mmfw_settings.precision == "bf16"


def test_batch_size_resets_batch_size_per_device() -> None:
    after = merge_options(make_run_request(overrides=["training.batch_size_per_device=2"]), batch_size=4)
    assert after.settings["training"] == {"batch_size": 4, "batch_size_per_device": None}
    assert "batch_size_per_device" not in merge_options(make_run_request(), batch_size=4).settings["training"]


def test_new_total_replaces_old_one_in_any_spelling() -> None:
    after = merge_options(make_run_request(updates=100), epochs=3)
    assert (after.mmfw_settings.updates, after.mmfw_settings.epochs) == (None, 3)
    again = after.merged_with({"training": {"max_updates": 9}})
    assert again.mmfw_settings.epochs is None, "epochs would take precedence over the override"
    assert (again.training_number("max_updates"), again.settings["training"]["max_epochs"]) == (9, None)
    assert merge_options(make_run_request(updates=100)).training_number("max_updates") == 100
    updates = merge_options(after, updates=5)
    assert (updates.training_number("max_updates"), updates.mmfw_settings) == (5, MmfwSettings(updates=5))


def test_only_given_options_become_settings() -> None:
    def read_settings(**options: Any) -> Any:
        return CommandOptions(**options).settings

    assert read_settings(seed=1) == {"training": {"seed": 1}}
    assert read_settings(batch_size="auto") == {"mmfw": {"auto_batch": True}}
    assert merge_options(make_run_request(batch_size="auto"), batch_size=8).mmfw_settings.auto_batch is False
    assert read_settings() == read_settings(allow_missing=False) == {}
    assert read_settings(updates=5)["training"] == {"max_updates": 5, "max_epochs": None}, (
        "max_epochs of a preset must be reset"
    )


def test_single_command_options_are_not_settings() -> None:
    options = CommandOptions(overrides=["a=1"], trust=True, retry=False, detect_anomaly=True, seed=1)
    assert (options.trust, options.retry, options.detect_anomaly) == (True, False, True)
    assert options.settings == {"training": {"seed": 1}}
    assert options.overrides == ["a=1"]


def test_start_settings_are_not_saved(tmp_path: Path) -> None:
    """They must not affect how a run resumes, or which weights predict."""
    run = Run.create(tmp_path, "mmbt")
    start_overrides = ["resume_file=other.ckpt", "resume_zoo=x", "reset.all=True", "zoo_config_override=True"]
    overrides = [*(f"checkpoint.{override}" for override in start_overrides), "checkpoint.monitor=m", "run_type=train"]
    run.save_request(make_run_request(model="mmbt", splits=RUN_SPLITS, overrides=overrides))
    assert run.request().settings == {"checkpoint": {"monitor": "m"}, "run_type": "train"}


@pytest.mark.parametrize(
    "content",
    [
        *("{}", "[]", "{half a", '{"model": "mmbt", "splits": {"train": "train"}}'),
        json.dumps({"model": "mmbt", "splits": RUN_SPLITS, "settings": {"mmfw": {"keep": "many"}}}),
        json.dumps({"model": "mmbt", "splits": RUN_SPLITS, "overrides": ["a=1"]}),
    ],
)
def test_invalid_request_file_is_named(tmp_path: Path, content: str) -> None:
    run = Run.create(tmp_path, "mmbt")
    run.request_file.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"request\.json"):
        run.request()


def test_precision_override_replaces_that_of_run(tmp_path: Path, mmf_paths: MmfPaths) -> None:
    root = write_minimal_mmf(tmp_path / "mmf", "1.0.0rc12", "training: {fp16: false, seed: 1}\n")
    mmf, run_request = (
        MmfInstall(root, "1.0.0rc12", "path"),
        make_run_request(model="mmbt", precision="bf16", mmf_version="1.0.0rc12"),
    )
    for override, precision in (("training.seed=3", "bf16"), ("training.fp16=true", None)):
        options = CommandOptions(overrides=[override])
        plan = plan_attempt("train", mmf, RunJob(run_request, options, mmf_paths), run_request, {"training": {}})
        assert plan.first_attempt.precision == plan.request.mmfw_settings.precision == precision
        assert plan.first_attempt.settings["training"]["fp16"] is (precision is None)


def test_start_settings_are_in_the_attempt(tmp_path: Path, mmf_paths: MmfPaths) -> None:
    root = write_minimal_mmf(tmp_path / "mmf", extra_defaults="checkpoint: {reset: {all: false}, resume_zoo: null}\n")
    options, mmf = (CommandOptions(overrides=["checkpoint.reset.all=true"]), MmfInstall(root, "1.0.0rc10", "path"))
    run_request = make_run_request(model="mmbt")
    plan = plan_attempt("train", mmf, RunJob(run_request, options, mmf_paths), run_request, {})
    assert plan.first_attempt.settings["checkpoint"] == {"reset": {"all": True}}
    assert plan.config["checkpoint"]["reset"]["all"] is True
