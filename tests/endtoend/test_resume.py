"""Resuming of interrupted runs, with the same results as without the interruption."""

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

# With a learning rate above 0, the rate differs at each update; interruptions are between validations.
SCHEDULE = (
    "training.log_interval=1",
    "training.evaluation_interval=2",
    "training.checkpoint_interval=2",
    "training.lr_scheduler=True",
    "scheduler.type=warmup_linear",
    "scheduler.params.num_warmup_steps=3",
    "scheduler.params.num_training_steps=20",
)


def read_train_events(run: Run) -> dict[int, Event]:
    """Return the last train event of each update."""
    return {event["update"]: event for event in read_events_of_kind(run, "train")}


def read_validation_metrics(run: Run) -> dict[int, dict[str, float]]:
    """Return the metrics of each validation except the final one, by update."""
    return {event["update"]: event["metrics"] for event in read_events_of_kind(run, "val") if not event["final"]}


def test_changed_learning_rate_needs_hinted_override(tool: Tool) -> None:
    schedule = ("training.log_interval=1", "training.lr_scheduler=False")
    tool("train", tool.write_preset("bert"), "--updates", "2", *schedule, "optimizer.params.lr=0.01")
    arguments = ("train", "--resume", "last", "--updates", "4", "optimizer.params.lr=0.0001")
    assert tool.run_for_exit_code(*arguments) == 2
    [hint] = [line for line in tool.errors.splitlines() if line.startswith("hint:")]
    run = tool.get_run(tool(*arguments, hint.split()[2]))
    assert [read_train_events(run)[update]["lr"] for update in (2, 3, 4)] == [0.01, 0.0001, 0.0001]
    assert tool.run_for_exit_code("train", "--resume", "last") == 2, "a run that reached its total must not be resumed"
    [command] = re.findall("`mmfw (.*?)`", tool.errors)
    assert tool.run_for_exit_code(*split_command(command), "--updates", "1") == 0


def test_changed_total_of_updates_is_reported(tool: Tool, set_faults: SetFaults) -> None:
    set_faults({"at": "stepped", "do": "stop", "update": 2})
    arguments = ("train", tool.write_preset("bert"), "--updates", "3")
    assert tool.run_for_exit_code(*arguments) == 130 and "instead of" not in tool.errors
    set_faults()
    run = tool.train("--resume", "last")
    assert "instead of" not in tool.errors, "an unchanged total must not be reported"
    tool("train", "--resume", "last", "training.max_updates=5")
    assert "the total is 5 updates instead of 3" in tool.errors
    tool("train", "--resume", str(run.checkpoints / "current.ckpt"), "--epochs", "2")
    assert "the total is 8 updates instead of 5" in tool.errors


def test_resuming_run_that_reached_its_total_is_refused_with_updates(tool: Tool) -> None:
    preset = presets.load_preset(tool.write_preset("bert"))
    run = Run.create(tool.save_dir, "bert")
    splits = {"train": "train", "val": "dev_unseen", "test": "test_unseen"}
    mmf_paths = MmfPaths.resolve(tool.world.data, tool.save_dir)
    run.save_request(presets.build_request(preset, splits, mmf_paths).merged_with(CommandOptions(updates=100).settings))
    checkpoint = write_checkpoint(run.checkpoints / "current.ckpt", 80)
    AttemptOutcome("ok").save(run.outcome_file)
    totals = ("--updates", "20"), ("--epochs", "2"), ("training.max_updates=80",), ("training.max_epochs=2",)
    for spec, total in (("last", totals[0]), *((str(checkpoint), total) for total in totals)):
        assert tool.run_for_exit_code("train", "--resume", spec, *total) == 2
        assert "update 80" in tool.errors and "--init" in tool.errors
        assert "--save-dir" in tool.errors, "the hint must name the folder of this run"
    (tool.folder / "bert.yaml").unlink()
    assert tool.run_for_exit_code("train", "--resume", "last", *totals[0]) == 2
    assert "--init" not in tool.errors and "PRESET" not in tool.errors, "no hint may omit the preset"
    assert list(tool.save_dir.glob("*/*")) == [run.path], "no other folder may exist"
    assert not (run.path / "attempts").exists(), "MMF must not be loaded"
    request_before = run.request_file.read_bytes()
    assert tool.run_for_exit_code("train", "--resume", "last", "training.max_updates=null") == 2
    assert "training.max_epochs" in tool.errors
    assert run.request_file.read_bytes() == request_before


@pytest.mark.parametrize("workers", mark_wide([0, 2], except_for=(0,)))
def test_run_stopped_within_and_at_end_of_epoch_ends_with_same_weights(
    tool: Tool, set_faults: SetFaults, workers: int
) -> None:
    """14 rows are four batches. The stops are after updates 2 and 4, when a validation is due, and 7."""
    preset = tool.write_preset("vilbert")
    overrides = (*SCHEDULE, "optimizer.params.lr=0.01", f"training.num_workers={workers}")
    arguments = ("--updates", "7", "--seed", "3", *overrides)
    uninterrupted = tool.train(preset, "--name", "whole", *arguments)
    set_faults(*({"at": "stepped", "do": "stop", "update": update} for update in (2, 4, 7)))
    assert tool.run_for_exit_code("train", preset, "--name", "parts", *arguments) == 130
    assert tool.run_for_exit_code("train", "--resume", "parts") == 130
    assert tool.run_for_exit_code("train", "--resume", "parts") == 130
    resumed = tool.train("--resume", "last")
    assert start_updates(resumed) == [0, 2, 4, 7]
    assert list(read_train_events(resumed)) == list(read_train_events(uninterrupted)) == [1, 2, 3, 4, 5, 6, 7]
    for field in ("lr", "loss", "epoch"):
        values = [[event[field] for event in read_train_events(run).values()] for run in (uninterrupted, resumed)]
        assert values[0] == values[1], field
    assert len({event["lr"] for event in read_train_events(uninterrupted).values()}) > 5, "the schedule must be active"
    resumed_metrics, uninterrupted_metrics = read_validation_metrics(resumed), read_validation_metrics(uninterrupted)
    # In a process without updates, kernels may sum up in another order.
    assert resumed_metrics.pop(7) == pytest.approx(uninterrupted_metrics.pop(7))
    assert resumed_metrics == uninterrupted_metrics
    assert_same_weights(resumed, uninterrupted)


@pytest.mark.wide
@pytest.mark.skipif(sys.platform != "linux", reason="the soak script looks for processes in /proc; not on Windows")
@pytest.mark.usefixtures("mmf")
def test_soak_script_finds_no_loss_after_random_interruptions() -> None:
    script = Path(__file__).parents[2] / "scripts" / "soak.py"
    arguments = ("--interruptions", "2", "--updates", "150", "--seed", "5")
    process = subprocess.run(
        [sys.executable, str(script), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "2 interruptions, 150 updates" in process.stdout and "Lost: nothing." in process.stdout
