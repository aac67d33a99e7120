"""Half precision and --fast around the real MMF, on a CPU that seems to have what a test needs."""

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
)
from tests.endtoend.test_stopping import user
from tests.worlds.tools import mark_wide, requires_console_events

HALF, NO_HALF = {"at": "hardware", "do": "half"}, {"at": "hardware", "do": "no_half"}
MMFS_SCALER = """
import torch
from mmf.trainers.mmf_trainer import MMFTrainer
MMFTrainer.load_fp16_scaler = lambda self: setattr(self, "scaler", torch.amp.GradScaler("cpu"))
"""
WORDS = ("--seed", "3", "training.log_interval=1")


@pytest.mark.parametrize(
    ("name", "half"), mark_wide(product(["mmbt", "vilbert"], ["bf16", "fp16"]), except_for=[("vilbert", "fp16")])
)
def test_a_run_in_half_precision_stays_near_the_other_and_resumes_exactly(
    tool: Tool, set_faults: SetFaults, name: str, half: str
) -> None:
    import torch

    preset = tool.preset(name)
    words = ("--updates", "5", *WORDS)
    full = tool.train(preset, "--name", "full", *words)
    set_faults(HALF)
    whole = tool.train(preset, "--name", "whole", "--precision", half, *words)
    assert f"in {half}:" in tool.errors
    assert logged_losses(whole) != logged_losses(full)
    assert logged_losses(whole) == pytest.approx(logged_losses(full), abs=0.05)

    set_faults(HALF, {"at": "saved", "do": "stop", "once": str(tool.folder / "stopped")})
    assert tool.run_for_exit_code("train", preset, "--name", "parts", "--precision", half, *words) == 130
    parts = tool.train("--resume", "last")
    assert "resuming in" not in tool.errors
    started = read_events_of_kind(parts, "train_started")
    assert [(event["update"], event["precision"]) for event in started] == [(0, half), (1, half)]
    assert [half in event["fit"] for event in started] == [True, True]
    assert logged_losses(parts) == logged_losses(whole)
    assert_same_weights(parts, whole)
    if half == "fp16":
        scaler = load_checkpoint(whole)["mmfw"]["scaler"]
        assert load_checkpoint(parts)["mmfw"]["scaler"] == scaler
        assert scaler["scale"] < 2**16, "an update overflowed, and was left out"
    assert {value.dtype for value in load_checkpoint(parts)["model"].values() if value.is_floating_point()} == {
        torch.float32
    }


def test_predictions_are_made_in_the_precision_of_the_run_unless_another_is_asked_for(
    tool: Tool, set_faults: SetFaults
) -> None:
    set_faults(HALF)
    run = tool.train(tool.preset("mmbt"), "--updates", "1", *WORDS, "--precision", "bf16")
    assert "precision=bf16" in tool("runs")[0]["differs"]
    before = run.events.read_bytes()
    predicted = [tool("predict", "--no-report"), tool("predict", "--no-report", "--precision", "fp32")]
    assert [each["members"][0]["precision"] for each in predicted] == ["bf16", "fp32"]
    assert run.events.read_bytes() == before, "a training may be writing to it meanwhile"
    half, full = map(probabilities, predicted)
    assert half != full and half == pytest.approx(full, abs=0.05)
    assert json.loads(run.request_file.read_text(encoding="utf-8"))["settings"]["mmfw"]["precision"] == "bf16"


@pytest.mark.wide
@requires_console_events
def test_each_of_two_predictions_at_once_records_its_own_precision(tool: Tool, set_faults: SetFaults) -> None:
    run, at = tool.get_trained_run("mmbt"), tool.folder / "at"
    set_faults(HALF, {"at": "validation", "do": "wait", "once": str(at)})
    with user(tool, "predict", "--no-report", "--precision", "bf16") as somebody:
        somebody.waits_for(at.exists)
        first = tool("predict", "--no-report")
        Path(f"{at}.go").touch()
        assert somebody.gets_the_prompt_back() == 0
    (second,) = {*run.reports.glob("*.csv")} - {Path(first["csv"])}
    record = json.loads(metrics_path(second).read_text(encoding="utf-8"))
    assert [each["members"][0]["precision"] for each in (first, record)] == ["fp32", "bf16"]


@pytest.mark.wide
def test_hardware_without_half_precision_trains_and_predicts_in_full_and_says_so(
    tool: Tool, set_faults: SetFaults
) -> None:
    preset = tool.preset("mmbt")
    full = tool.train(preset, "--name", "full", "--updates", "2", *WORDS)
    set_faults(NO_HALF)
    run = tool.train(preset, "--updates", "2", *WORDS, "--precision", "bf16")
    assert "does not support bf16" in tool.errors
    assert logged_losses(run) == logged_losses(full)
    assert [event["precision"] for event in read_events_of_kind(run, "train_started")] == ["fp32"]
    assert tool("predict", "--no-report")["members"][0]["precision"] == "fp32"
    assert "does not support bf16" in tool.errors


def test_anomalies_are_not_looked_for_in_fp16_and_a_micro_batch_not_among_short_texts(
    tool: Tool, set_faults: SetFaults
) -> None:
    set_faults(HALF, {"at": "meter", "above": 4})
    words = ("--updates", "2", *WORDS, "--precision", "fp16", "--detect-anomaly")
    run = tool("train", tool.preset("vilbert"), *words, "--fast", "--batch-size", "auto")
    assert run["state"] == "done"
    assert "--detect-anomaly is ignored in fp16" in tool.errors
    assert "texts keep their full length" in tool.errors


@pytest.mark.usefixtures("only_rc12")
def test_a_run_goes_on_with_mmfs_own_scaler_here_one_of_a_cpu(tool: Tool) -> None:
    tool.get_trained_run("vilbert")
    folder = tool.folder / "scaled"
    folder.mkdir()
    (folder / "__init__.py").write_text(MMFS_SCALER, encoding="utf-8")
    words = ("--updates", "2", f"env.user_dir={folder}", "--trust")
    run = tool.train("--resume", "last", *words)
    assert load_checkpoint(run)["fp16_scaler"]["scale"] > 1


def test_an_update_that_overflows_does_not_count_in_the_search_for_a_micro_batch(
    tool: Tool, set_faults: SetFaults
) -> None:
    set_faults(HALF, {"at": "meter", "above": 4})
    words = ("--updates", "16", *WORDS, "--precision", "fp16", "--batch-size", "auto")
    run = tool.train(tool.preset("vilbert"), *words, "training.batch_size=8")
    found = next(event for event in read_events_of_kind(run, "micro_batch") if event["found"])
    before = [event["update"] for event in read_events_of_kind(run, "train") if event["t"] < found["t"]]
    left_out = math.log2(2**16 / load_checkpoint(run)["mmfw"]["scaler"]["scale"])
    assert 2 < len(before) <= 2 + left_out, "one to warm up, two measured, and those that overflowed"


@pytest.mark.wide
def test_a_fast_run_pads_less_draws_other_numbers_and_resumes_as_one(tool: Tool, set_faults: SetFaults) -> None:
    preset = tool.preset("mmbt")
    words = ("--updates", "4", *WORDS)
    plain = tool.train(preset, "--name", "plain", *words)
    fast = tool.train(preset, "--name", "fast", "--fast", *words)
    assert logged_losses(fast) != logged_losses(plain), "dropout draws other numbers"
    assert "fast" in tool("runs", "show", "fast")["differs"]
    set_faults({"at": "stepped", "do": "stop", "update": 2})
    assert tool.run_for_exit_code("train", preset, "--name", "parts", "--fast", *words) == 130
    parts = tool.train("--resume", "last")
    assert logged_losses(parts) == logged_losses(fast)
    resumed = tool("train", "--resume", "last", "--no-fast", "--updates", "5")
    assert "fast" not in (resumed["differs"] or "")


@pytest.mark.wide
def test_without_dropout_a_fast_run_has_the_losses_of_a_plain_one(tool: Tool) -> None:
    settings = tool.settings("mmbt")
    encoder = settings["model_config"]["mmbt"]["text_encoder"]["params"]
    encoder |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    preset = tool.preset("mmbt", settings=settings)
    runs = [tool.train(preset, "--updates", "4", *WORDS, *words) for words in ([], ["--fast"])]
    assert logged_losses(runs[1]) == pytest.approx(logged_losses(runs[0]), abs=1e-3)


@pytest.mark.wide
def test_a_loss_that_is_too_large_for_fp16_is_calculated_in_full_precision(tool: Tool, set_faults: SetFaults) -> None:
    set_faults(HALF)
    tool("train", tool.preset("vilbert"), "--updates", "1", *WORDS, "--precision", "fp16")
    set_faults(HALF, {"at": "forward", "do": "nan", "once": str(tool.folder / "struck")})
    assert tool.run_for_exit_code("train", "--resume", "last", "--updates", "3") == 7
    [hint] = re.findall("hint: .*?`mmfw (.*?)` with --precision fp32", tool.errors)
    words = [*shlex.split(hint), "--precision", "fp32"]
    run = tool.get_run(tool(*words))
    assert "resuming in fp32" in tool.errors
    assert [event["precision"] for event in read_events_of_kind(run, "train_started")] == ["fp16", "fp16", "fp32"]
    assert tool("runs")[0]["updates"] == 3
