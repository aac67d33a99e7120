"""Half precision and --fast with the real MMF, on a CPU with simulated hardware support."""

from __future__ import annotations

import json
import math
import re
import shlex
from itertools import product
from pathlib import Path

import pytest

from mmf_win.results.metrics_file import metrics_path
from tests.endtoend.conftest import (
    SetFaults,
    Tool,
    assert_same_weights,
    load_checkpoint,
    logged_losses,
    probabilities,
    read_events_of_kind,
    start_command,
)
from tests.worlds.tools import mark_wide, requires_console_events

HALF_PRECISION, NO_HALF_PRECISION = {"at": "hardware", "do": "half"}, {"at": "hardware", "do": "no_half"}
# Uses a gradient scaler for CPUs instead of MMF's own, which needs a GPU.
MMF_SCALER_CODE = """
import torch
from mmf.trainers.mmf_trainer import MMFTrainer
MMFTrainer.load_fp16_scaler = lambda self: setattr(self, "scaler", torch.amp.GradScaler("cpu"))
"""
COMMON_ARGUMENTS = ("--seed", "3", "training.log_interval=1")


@pytest.mark.parametrize(
    ("name", "precision"), mark_wide(product(["mmbt", "vilbert"], ["bf16", "fp16"]), except_for=[("vilbert", "fp16")])
)
def test_half_precision_run_is_close_to_full_one_and_resumes_exactly(
    tool: Tool, set_faults: SetFaults, name: str, precision: str
) -> None:
    import torch

    preset = tool.write_preset(name)
    arguments = ("--updates", "5", *COMMON_ARGUMENTS)
    full = tool.train(preset, "--name", "full", *arguments)
    set_faults(HALF_PRECISION)
    uninterrupted = tool.train(preset, "--name", "whole", "--precision", precision, *arguments)
    assert f"in {precision}:" in tool.errors
    assert logged_losses(uninterrupted) != logged_losses(full)
    assert logged_losses(uninterrupted) == pytest.approx(logged_losses(full), abs=0.05)

    set_faults(HALF_PRECISION, {"at": "saved", "do": "stop", "once": str(tool.folder / "stopped")})
    assert tool.run_for_exit_code("train", preset, "--name", "parts", "--precision", precision, *arguments) == 130
    resumed = tool.train("--resume", "last")
    assert "resuming in" not in tool.errors
    starts = read_events_of_kind(resumed, "train_started")
    assert [(event["update"], event["precision"]) for event in starts] == [(0, precision), (1, precision)]
    assert [precision in event["fit"] for event in starts] == [True, True]
    assert logged_losses(resumed) == logged_losses(uninterrupted)
    assert_same_weights(resumed, uninterrupted)
    if precision == "fp16":
        scaler = load_checkpoint(uninterrupted)["mmfw"]["scaler"]
        assert load_checkpoint(resumed)["mmfw"]["scaler"] == scaler
        assert scaler["scale"] < 2**16, "an update must overflow and be skipped"
    assert {value.dtype for value in load_checkpoint(resumed)["model"].values() if value.is_floating_point()} == {
        torch.float32
    }


def test_predictions_use_precision_of_run_unless_another_is_given(tool: Tool, set_faults: SetFaults) -> None:
    set_faults(HALF_PRECISION)
    run = tool.train(tool.write_preset("mmbt"), "--updates", "1", *COMMON_ARGUMENTS, "--precision", "bf16")
    assert "precision=bf16" in tool("runs")[0]["differs"]
    events_before = run.events.read_bytes()
    results = [tool("predict", "--no-report"), tool("predict", "--no-report", "--precision", "fp32")]
    assert [result["members"][0]["precision"] for result in results] == ["bf16", "fp32"]
    assert run.events.read_bytes() == events_before, "no prediction may change the log of a training"
    half, full = map(probabilities, results)
    assert half != full and half == pytest.approx(full, abs=0.05)
    assert json.loads(run.request_file.read_text(encoding="utf-8"))["settings"]["mmfw"]["precision"] == "bf16"


@pytest.mark.wide
@requires_console_events
def test_concurrent_predictions_record_their_own_precision(tool: Tool, set_faults: SetFaults) -> None:
    run, paused = tool.get_trained_run("mmbt"), tool.folder / "at"
    set_faults(HALF_PRECISION, {"at": "validation", "do": "wait", "once": str(paused)})
    with start_command(tool, "predict", "--no-report", "--precision", "bf16") as command:
        command.wait_until(paused.exists)
        first = tool("predict", "--no-report")
        Path(f"{paused}.go").touch()
        assert command.wait_for_exit() == 0
    (second,) = {*run.reports.glob("*.csv")} - {Path(first["csv"])}
    record = json.loads(metrics_path(second).read_text(encoding="utf-8"))
    assert [result["members"][0]["precision"] for result in (first, record)] == ["fp32", "bf16"]


@pytest.mark.wide
def test_hardware_without_half_precision_uses_fp32_with_warning(tool: Tool, set_faults: SetFaults) -> None:
    preset = tool.write_preset("mmbt")
    full = tool.train(preset, "--name", "full", "--updates", "2", *COMMON_ARGUMENTS)
    set_faults(NO_HALF_PRECISION)
    run = tool.train(preset, "--updates", "2", *COMMON_ARGUMENTS, "--precision", "bf16")
    assert "does not support bf16" in tool.errors
    assert logged_losses(run) == logged_losses(full)
    assert [event["precision"] for event in read_events_of_kind(run, "train_started")] == ["fp32"]
    assert tool("predict", "--no-report")["members"][0]["precision"] == "fp32"
    assert "does not support bf16" in tool.errors


def test_fp16_ignores_anomaly_detection_and_auto_batch_size_keeps_text_length(
    tool: Tool, set_faults: SetFaults
) -> None:
    set_faults(HALF_PRECISION, {"at": "meter", "above": 4})
    arguments = ("--updates", "2", *COMMON_ARGUMENTS, "--precision", "fp16", "--detect-anomaly")
    run = tool("train", tool.write_preset("vilbert"), *arguments, "--fast", "--batch-size", "auto")
    assert run["state"] == "done"
    assert "--detect-anomaly is ignored in fp16" in tool.errors
    assert "texts keep their full length" in tool.errors


@pytest.mark.usefixtures("only_rc12")
def test_run_resumes_with_gradient_scaler_of_mmf(tool: Tool) -> None:
    tool.get_trained_run("vilbert")
    folder = tool.folder / "scaled"
    folder.mkdir()
    (folder / "__init__.py").write_text(MMF_SCALER_CODE, encoding="utf-8")
    arguments = ("--updates", "2", f"env.user_dir={folder}", "--trust")
    run = tool.train("--resume", "last", *arguments)
    assert load_checkpoint(run)["fp16_scaler"]["scale"] > 1


def test_overflowing_update_does_not_count_in_micro_batch_search(tool: Tool, set_faults: SetFaults) -> None:
    set_faults(HALF_PRECISION, {"at": "meter", "above": 4})
    arguments = ("--updates", "16", *COMMON_ARGUMENTS, "--precision", "fp16", "--batch-size", "auto")
    run = tool.train(tool.write_preset("vilbert"), *arguments, "training.batch_size=8")
    fitting = next(event for event in read_events_of_kind(run, "micro_batch") if event["found"])
    updates = [event["update"] for event in read_events_of_kind(run, "train") if event["t"] < fitting["t"]]
    skipped = math.log2(2**16 / load_checkpoint(run)["mmfw"]["scaler"]["scale"])
    assert 2 < len(updates) <= 2 + skipped, "the search must count no overflowing update"


@pytest.mark.wide
def test_fast_run_differs_from_plain_run_and_resumes_with_fast(tool: Tool, set_faults: SetFaults) -> None:
    preset = tool.write_preset("mmbt")
    arguments = ("--updates", "4", *COMMON_ARGUMENTS)
    plain = tool.train(preset, "--name", "plain", *arguments)
    fast = tool.train(preset, "--name", "fast", "--fast", *arguments)
    assert logged_losses(fast) != logged_losses(plain), "dropout must draw other numbers"
    assert "fast" in tool("runs", "show", "fast")["differs"]
    set_faults({"at": "stepped", "do": "stop", "update": 2})
    assert tool.run_for_exit_code("train", preset, "--name", "parts", "--fast", *arguments) == 130
    resumed = tool.train("--resume", "last")
    assert logged_losses(resumed) == logged_losses(fast)
    resumed_plain = tool("train", "--resume", "last", "--no-fast", "--updates", "5")
    assert "fast" not in (resumed_plain["differs"] or "")


@pytest.mark.wide
def test_fast_run_without_dropout_has_losses_of_plain_run(tool: Tool) -> None:
    settings = tool.recipe_settings("mmbt")
    encoder = settings["model_config"]["mmbt"]["text_encoder"]["params"]
    encoder |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    preset = tool.write_preset("mmbt", settings=settings)
    runs = [tool.train(preset, "--updates", "4", *COMMON_ARGUMENTS, *options) for options in ([], ["--fast"])]
    assert logged_losses(runs[1]) == pytest.approx(logged_losses(runs[0]), abs=1e-3)


@pytest.mark.wide
def test_hint_after_nan_in_fp16_resumes_in_full_precision(tool: Tool, set_faults: SetFaults) -> None:
    set_faults(HALF_PRECISION)
    tool("train", tool.write_preset("vilbert"), "--updates", "1", *COMMON_ARGUMENTS, "--precision", "fp16")
    set_faults(HALF_PRECISION, {"at": "forward", "do": "nan", "once": str(tool.folder / "struck")})
    assert tool.run_for_exit_code("train", "--resume", "last", "--updates", "3") == 7
    [command] = re.findall("hint: .*?`mmfw (.*?)` with --precision fp32", tool.errors)
    arguments = [*shlex.split(command), "--precision", "fp32"]
    run = tool.get_run(tool(*arguments))
    assert "resuming in fp32" in tool.errors
    assert [event["precision"] for event in read_events_of_kind(run, "train_started")] == ["fp16", "fp16", "fp32"]
    assert tool("runs")[0]["updates"] == 3
