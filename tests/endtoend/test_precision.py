"""Half precision and --fast around the real MMF, on a CPU that seems to have what a test needs."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmf_win.protocol import Event, read_events
from mmf_win.results.saved_metrics import path_beside
from mmf_win.runs.folder import Run
from tests.endtoend.conftest import Tool
from tests.endtoend.test_stopping import user
from tests.worlds.recipes import recipes
from tests.worlds.tools import requires_console_events

pytestmark = pytest.mark.torch

Faulty = Callable[..., None]
HALF, NO_HALF = {"at": "hardware", "do": "half"}, {"at": "hardware", "do": "no_half"}
_HALVES = ("bf16", "fp16")
MMFS_SCALER = """
import torch
from mmf.trainers.mmf_trainer import MMFTrainer
MMFTrainer.load_fp16_scaler = lambda self: setattr(self, "scaler", torch.amp.GradScaler("cpu"))
"""
WORDS = ("--seed", "3", "training.log_interval=1")


def events(run: Run, kind: str) -> list[Event]:
    return [event for event in read_events(run.events) if event["kind"] == kind]


def losses(run: Run) -> list[float]:
    return [event["loss"] for event in events(run, "train")]


def saved(run: Run) -> dict[str, Any]:
    """The last checkpoint."""
    import torch

    return dict(torch.load(run.checkpoints / "current.ckpt", weights_only=True))


def probabilities(csv: str) -> list[float]:
    lines = Path(csv).read_text(encoding="utf-8").splitlines()[1:]
    return [float(line.split(",")[1]) for line in lines]


@pytest.mark.parametrize("half", _HALVES)
@pytest.mark.parametrize("name", ["mmbt", "vilbert"])
def test_a_run_in_half_precision_stays_near_the_other_and_resumes_exactly(
    tool: Tool, faulty: Faulty, name: str, half: str
) -> None:
    import torch

    preset = tool.preset(name)
    words = ("--updates", "5", *WORDS)
    full = tool.run_of(tool("train", preset, "--name", "full", *words))
    faulty(HALF)
    whole = tool.run_of(tool("train", preset, "--name", "whole", "--precision", half, *words))
    assert f"in {half}:" in tool.errors
    assert losses(whole) != losses(full)
    assert losses(whole) == pytest.approx(losses(full), abs=0.05)

    faulty(HALF, {"at": "saved", "do": "stop", "once": str(tool.folder / "stopped")})
    assert tool.code("train", preset, "--name", "parts", "--precision", half, *words) == 130
    parts = tool.run_of(tool("train", "--resume", "last"))
    starts = events(parts, "train_started")
    assert [(event["update"], event["precision"]) for event in starts] == [(0, half), (1, half)]
    assert [half in event["fit"] for event in events(parts, "train_started")] == [True, True]
    assert losses(parts) == losses(whole)
    there = saved(whole)["model"]
    assert all(torch.equal(value, there[key]) for key, value in saved(parts)["model"].items())
    if half == "fp16":
        scaler = saved(whole)["mmfw"]["scaler"]
        assert saved(parts)["mmfw"]["scaler"] == scaler
        assert scaler["scale"] < 2**16, "an update overflowed, and was left out"
    assert {value.dtype for value in saved(parts)["model"].values() if value.is_floating_point()} == {
        torch.float32
    }


def test_predictions_are_made_in_the_precision_of_the_run_unless_another_is_asked_for(
    tool: Tool, faulty: Faulty
) -> None:
    faulty(HALF)
    run = tool.run_of(tool("train", tool.preset("mmbt"), "--updates", "1", *WORDS, "--precision", "bf16"))
    assert "precision=bf16" in tool("runs")[0]["differs"]
    before = run.events.read_bytes()
    predicted = [tool("predict", "--no-report"), tool("predict", "--no-report", "--precision", "fp32")]
    assert [each["members"][0]["precision"] for each in predicted] == ["bf16", "fp32"]
    assert run.events.read_bytes() == before, "a training may be writing to it meanwhile"
    half, full = (probabilities(each["csv"]) for each in predicted)
    assert half != full and half == pytest.approx(full, abs=0.05)
    assert json.loads(run.request_file.read_text(encoding="utf-8"))["precision"] == "bf16"


@requires_console_events
def test_each_of_two_predictions_at_once_records_its_own_precision(tool: Tool, faulty: Faulty) -> None:
    run, at = tool.trained("mmbt"), tool.folder / "at"
    faulty(HALF, {"at": "validation", "do": "wait", "once": str(at)})
    with user(tool, "predict", "--no-report", "--precision", "bf16") as somebody:
        somebody.waits_for(at)
        first = tool("predict", "--no-report")
        Path(f"{at}.go").touch()
        assert somebody.gets_the_prompt_back() == 0
    (second,) = {*run.reports.glob("*.csv")} - {Path(first["csv"])}
    record = json.loads(path_beside(second).read_text(encoding="utf-8"))
    assert [each["members"][0]["precision"] for each in (first, record)] == ["fp32", "bf16"]


def test_hardware_without_half_precision_trains_and_predicts_in_full_and_says_so(
    tool: Tool, faulty: Faulty
) -> None:
    preset = tool.preset("mmbt")
    full = tool.run_of(tool("train", preset, "--name", "full", "--updates", "2", *WORDS))
    faulty(NO_HALF)
    run = tool.run_of(tool("train", preset, "--updates", "2", *WORDS, "--precision", "bf16"))
    assert "does not calculate in bf16" in tool.errors
    assert losses(run) == losses(full)
    assert [event["precision"] for event in events(run, "train_started")] == ["fp32"]
    assert tool("predict", "--no-report")["members"][0]["precision"] == "fp32"
    assert "does not calculate in bf16" in tool.errors


def test_a_run_may_go_on_in_another_precision(tool: Tool, faulty: Faulty) -> None:
    faulty(HALF)
    tool("train", tool.preset("vilbert"), "--updates", "1", *WORDS)
    for updates, precision in enumerate(("fp16", "bf16", "fp16", "fp32"), start=2):
        run = tool("train", "--resume", "last", "--precision", precision, "--updates", str(updates))
        assert f"goes on in {precision}" in tool.errors
    started = events(tool.run_of(run), "train_started")
    assert [event["precision"] for event in started] == ["fp32", "fp16", "bf16", "fp16", "fp32"]
    tool("train", "--resume", "last", "--updates", "6")
    assert "goes on in" not in tool.errors


@pytest.mark.parametrize(
    ("name", "half"),
    # A CPU that only seems to have fp16 has no LSTM in it.
    [(name, half) for name in sorted(recipes()) for half in _HALVES if (name, half) != ("cnn_lstm", "fp16")],
)
def test_every_model_trains_and_predicts_in_half_precision(
    tool: Tool, faulty: Faulty, name: str, half: str
) -> None:
    faulty(HALF)
    tool("train", tool.preset(name), "--updates", "1", "--precision", half, *WORDS)
    found = [tool("predict", "--no-report", "--precision", each) for each in (half, "fp32")]
    assert [each["members"][0]["precision"] for each in found] == [half, "fp32"]
    in_half, in_full = (probabilities(each["csv"]) for each in found)
    assert in_half == pytest.approx(in_full, abs=0.03)


@pytest.mark.parametrize("name", sorted(recipes()))
def test_fast_predictions_of_every_model_are_the_same_to_floating_point_noise(tool: Tool, name: str) -> None:
    """Texts of some words are padded to 32 tokens, or with --fast to 8."""
    settings = tool.settings(name)
    processors = settings.get("dataset_config", {}).get("hateful_memes", {}).get("processors", {})
    if "max_seq_length" in processors.get("text_processor", {}).get("params", {}):
        processors["text_processor"]["params"]["max_seq_length"] = 32
    tool("train", tool.preset(name, settings=settings), "--updates", "1", "--seed", "1")
    plain, fast = (tool("predict", "--no-report", *words) for words in ((), ("--fast",)))
    assert probabilities(fast["csv"]) == pytest.approx(probabilities(plain["csv"]), abs=1e-5)


@pytest.mark.usefixtures("only_rc12")
@pytest.mark.parametrize("name", ["lxmert", "vilt"])
def test_fast_leaves_models_of_rc12_as_they_are_that_read_padding(tool: Tool, name: str) -> None:
    tool("train", tool.preset(name), "--updates", "1", "--seed", "1")
    plain, fast = (tool("predict", "--no-report", *words) for words in ((), ("--fast",)))
    assert ("reads padding" in tool.errors) == (name == "lxmert")
    assert probabilities(fast["csv"]) == pytest.approx(probabilities(plain["csv"]), abs=1e-5)


def test_anomalies_are_not_looked_for_in_fp16_and_a_micro_batch_not_among_short_texts(
    tool: Tool, faulty: Faulty
) -> None:
    faulty(HALF, {"at": "meter", "above": 4})
    words = ("--updates", "2", *WORDS, "--precision", "fp16", "--detect-anomaly")
    run = tool("train", tool.preset("vilbert"), *words, "--fast", "--batch-size", "auto")
    assert run["state"] == "done"
    assert "anomalies are not looked for" in tool.errors
    assert "texts stay as long" in tool.errors


@pytest.mark.usefixtures("only_rc12")
def test_a_run_goes_on_with_mmfs_own_scaler_here_one_of_a_cpu(tool: Tool) -> None:
    tool.trained("vilbert")
    folder = tool.folder / "scaled"
    folder.mkdir()
    (folder / "__init__.py").write_text(MMFS_SCALER, encoding="utf-8")
    words = ("--updates", "2", f"env.user_dir={folder}", "--trust")
    run = tool.run_of(tool("train", "--resume", "last", *words))
    assert saved(run)["fp16_scaler"]["scale"] > 1


def test_an_update_that_overflows_does_not_count_in_the_search_for_a_micro_batch(
    tool: Tool, faulty: Faulty
) -> None:
    faulty(HALF, {"at": "meter", "above": 4})
    words = ("--updates", "16", *WORDS, "--precision", "fp16", "--batch-size", "auto")
    run = tool.run_of(tool("train", tool.preset("vilbert"), *words, "training.batch_size=8"))
    found = next(event for event in events(run, "micro_batch") if event["found"])
    before = [event["update"] for event in events(run, "train") if event["t"] < found["t"]]
    left_out = math.log2(2**16 / saved(run)["mmfw"]["scaler"]["scale"])
    assert 2 < len(before) <= 2 + left_out, "one to warm up, two measured, and those that overflowed"


def test_a_fast_run_pads_less_draws_other_numbers_and_resumes_as_one(tool: Tool, faulty: Faulty) -> None:
    preset = tool.preset("mmbt")
    words = ("--updates", "4", *WORDS)
    plain = tool.run_of(tool("train", preset, "--name", "plain", *words))
    fast = tool.run_of(tool("train", preset, "--name", "fast", "--fast", *words))
    assert losses(fast) != losses(plain), "dropout draws other numbers"
    assert "fast" in tool("runs", "show", "fast")["differs"]
    faulty({"at": "stepped", "do": "stop", "update": 2})
    assert tool.code("train", preset, "--name", "parts", "--fast", *words) == 130
    parts = tool.run_of(tool("train", "--resume", "last"))
    assert losses(parts) == losses(fast)
    resumed = tool("train", "--resume", "last", "--no-fast", "--updates", "5")
    assert "fast" not in (resumed["differs"] or "")


def test_without_dropout_a_fast_run_has_the_losses_of_a_plain_one(tool: Tool) -> None:
    settings = tool.settings("mmbt")
    encoder = settings["model_config"]["mmbt"]["text_encoder"]["params"]
    encoder |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    preset = tool.preset("mmbt", settings=settings)
    runs = [
        tool.run_of(tool("train", preset, "--updates", "4", *WORDS, *words)) for words in ([], ["--fast"])
    ]
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=1e-3)


def test_a_loss_that_is_too_large_for_fp16_is_calculated_in_full_precision(
    tool: Tool, faulty: Faulty
) -> None:
    faulty(HALF)
    tool("train", tool.preset("vilbert"), "--updates", "1", *WORDS, "--precision", "fp16")
    faulty(HALF, {"at": "forward", "do": "nan", "once": str(tool.folder / "struck")})
    assert tool.code("train", "--resume", "last", "--updates", "3") == 7
    [hint] = re.findall("hint: .*?: mmfw (.*?) goes further", tool.errors)
    words = shlex.split(hint)
    assert words[-2:] == ["--precision", "fp32"]
    run = tool.run_of(tool(*words))
    assert [event["precision"] for event in events(run, "train_started")] == ["fp16", "fp16", "fp32"]
    assert tool("runs")[0]["updates"] == 3
