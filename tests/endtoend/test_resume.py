"""An interrupted run resumes as if it had not been interrupted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mmf_win.paths import MmfPaths
from mmf_win.protocol import AttemptOutcome, Event
from mmf_win.runs import presets
from mmf_win.runs.folder import Run
from mmf_win.runs.request import CommandOptions
from tests.endtoend.conftest import SetFaults, Tool, assert_same_weights, read_events_of_kind, start_updates
from tests.worlds.tools import mark_wide, split_command
from tests.worlds.torch_files import write_checkpoint

# A schedule whose rate differs at every update, and validations between which it is interrupted.
SCHEDULE = (
    "training.log_interval=1",
    "training.evaluation_interval=2",
    "training.checkpoint_interval=2",
    "training.lr_scheduler=True",
    "scheduler.type=warmup_linear",
    "scheduler.params.num_warmup_steps=3",
    "scheduler.params.num_training_steps=20",
    "optimizer.params.lr=0.01",
)


def trained(run: Run) -> dict[int, Event]:
    """The last word on each update."""
    return {event["update"]: event for event in read_events_of_kind(run, "train")}


def validated(run: Run) -> dict[int, dict[str, float]]:
    return {event["update"]: event["metrics"] for event in read_events_of_kind(run, "val") if not event["final"]}


def test_another_learning_rate_takes_what_the_hint_says(tool: Tool) -> None:
    schedule = ("training.log_interval=1", "training.lr_scheduler=False")
    tool("train", tool.preset("bert"), "--updates", "2", *schedule, "optimizer.params.lr=0.01")
    words = ("train", "--resume", "last", "--updates", "4", "optimizer.params.lr=0.0001")
    assert tool.run_for_exit_code(*words) == 2
    [hint] = [line for line in tool.errors.splitlines() if line.startswith("hint:")]
    run = tool.get_run(tool(*words, hint.split()[2]))
    assert [trained(run)[update]["lr"] for update in (2, 3, 4)] == [0.01, 0.0001, 0.0001]
    assert tool.run_for_exit_code("train", "--resume", "last") == 2, "it has reached its total"
    [command] = re.findall("`mmfw (.*?)`", tool.errors)
    assert tool.run_for_exit_code(*split_command(command), "--updates", "1") == 0


def test_another_total_is_noted_since_it_changes_the_schedule(tool: Tool, set_faults: SetFaults) -> None:
    set_faults({"at": "stepped", "do": "stop", "update": 2})
    words = ("train", tool.preset("bert"), "--updates", "3")
    assert tool.run_for_exit_code(*words) == 130 and "instead of" not in tool.errors
    set_faults()
    run = tool.train("--resume", "last")
    assert "instead of" not in tool.errors, "the total is what it was"
    tool("train", "--resume", "last", "training.max_updates=5")
    assert "the total is 5 updates instead of 3" in tool.errors
    tool("train", "--resume", str(run.checkpoints / "current.ckpt"), "--epochs", "2")
    assert "the total is 8 updates instead of 5" in tool.errors


def test_a_run_that_has_reached_its_total_is_refused_with_the_numbers(tool: Tool) -> None:
    preset = presets.load(tool.preset("bert"))
    run = Run.create(tool.save_dir, "bert")
    splits = {"train": "train", "val": "dev_unseen", "test": "test_unseen"}
    places = MmfPaths.resolve(tool.world.data, tool.save_dir)
    run.save_request(presets.build_request(preset, splits, places).merged_with(CommandOptions(updates=100).settings))
    saved = write_checkpoint(run.checkpoints / "current.ckpt", 80)
    AttemptOutcome("ok").save(run.outcome_file)
    totals = ("--updates", "20"), ("--epochs", "2"), ("training.max_updates=80",), ("training.max_epochs=2",)
    for wanted, total in (("last", totals[0]), *((str(saved), total) for total in totals)):
        assert tool.run_for_exit_code("train", "--resume", wanted, *total) == 2
        assert "update 80" in tool.errors and "--init" in tool.errors
        assert "--save-dir" in tool.errors, "where this run lies"
    (tool.folder / "bert.yaml").unlink()
    assert tool.run_for_exit_code("train", "--resume", "last", *totals[0]) == 2
    assert "--init" not in tool.errors and "PRESET" not in tool.errors, "it could not be run"
    assert list(tool.save_dir.glob("*/*")) == [run.path], "no folder is left behind"
    assert not (run.path / "attempts").exists(), "MMF was not loaded"
    before = run.request_file.read_bytes()
    assert tool.run_for_exit_code("train", "--resume", "last", "training.max_updates=null") == 2
    assert "training.max_epochs" in tool.errors
    assert run.request_file.read_bytes() == before


@pytest.mark.parametrize("workers", mark_wide([0, 2], except_for=(0,)))
def test_a_run_stopped_within_an_epoch_and_at_its_end_ends_with_the_same_weights(
    tool: Tool, set_faults: SetFaults, workers: int
) -> None:
    """14 rows are four batches; after updates 2 and 4, a validation is due as well, and 7 is the last."""
    preset = tool.preset("vilbert")
    words = ("--updates", "7", "--seed", "3", *SCHEDULE, f"training.num_workers={workers}")
    whole = tool.train(preset, "--name", "whole", *words)
    set_faults(*({"at": "stepped", "do": "stop", "update": update} for update in (2, 4, 7)))
    assert tool.run_for_exit_code("train", preset, "--name", "parts", *words) == 130
    assert tool.run_for_exit_code("train", "--resume", "parts") == 130
    assert tool.run_for_exit_code("train", "--resume", "parts") == 130
    parts = tool.train("--resume", "last")
    assert start_updates(parts) == [0, 2, 4, 7]
    assert list(trained(parts)) == list(trained(whole)) == [1, 2, 3, 4, 5, 6, 7]
    for figure in ("lr", "loss", "epoch"):
        values = [[event[figure] for event in trained(run).values()] for run in (whole, parts)]
        assert values[0] == values[1], figure
    assert len({event["lr"] for event in trained(whole).values()}) > 5, "the schedule does something"
    of_parts, of_whole = validated(parts), validated(whole)
    # Where a process has made no update, kernels may sum up in another order.
    assert of_parts.pop(7) == pytest.approx(of_whole.pop(7))
    assert of_parts == of_whole
    assert_same_weights(parts, whole)


@pytest.mark.wide
@pytest.mark.skipif(sys.platform != "linux", reason="the soak looks for processes in /proc, not on Windows")
@pytest.mark.usefixtures("mmf")
def test_the_soak_finds_that_a_training_interrupted_at_random_moments_loses_nothing() -> None:
    script = Path(__file__).parents[2] / "scripts" / "soak.py"
    words = ("--interruptions", "2", "--updates", "150", "--seed", "5")
    done = subprocess.run(
        [sys.executable, str(script), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 interruptions, 150 updates" in done.stdout and "Lost: nothing." in done.stdout
