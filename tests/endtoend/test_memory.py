"""Retries of runs that run out of memory, and the equality of their results with undisturbed runs."""

from __future__ import annotations

import sys

import pytest

from mmf_win.runs import attempts, micro_batch_store
from mmf_win.runs.lookup import list_runs
from tests.endtoend.conftest import (
    SetFaults,
    Tool,
    assert_same_weights,
    attempt_outcomes,
    logged_losses,
    probabilities,
    read_events_of_kind,
)
from tests.worlds.mounts import private_mounts_command
from tests.worlds.tools import mark_wide

DEFAULT_WORKER_COMMAND = attempts.WORKER_COMMAND


def write_large_step_preset(tool: Tool) -> str:
    """Write a preset of ViLBERT without dropout and with large steps that depend on the gradients; return its path."""
    settings = tool.settings_without_dropout("vilbert")
    settings["training"]["log_interval"] = 1
    # Adam's steps hardly depend on the size of the gradients, unless eps dominates the denominator.
    settings["optimizer"] = {"params": {"lr": 1.0, "eps": 1.0}}
    settings["scheduler"] = {"params": {"num_warmup_steps": 1}}
    return tool.write_preset("vilbert", settings=settings)


def test_accumulated_gradients_equal_those_of_undivided_batch(tool: Tool, set_faults: SetFaults) -> None:
    """14 rows are a batch of 13, split into micro-batches of 7 and 6, and a batch of one row."""
    arguments = ("train", write_large_step_preset(tool), "--updates", "5", "--seed", "3", "--batch-size", "13")
    undivided = tool.get_run(tool(*arguments, "--name", "whole"))
    set_faults({"at": "forward", "do": "cuda_oom", "above": 7})
    accumulated = tool.get_run(tool(*arguments, "--name", "parts"))
    assert [event["micro_batch"] for event in read_events_of_kind(accumulated, "train_started")] == [13, 7]
    undivided_scores, accumulated_scores = (
        [event["metrics"] for event in read_events_of_kind(run, "val") if not event["final"]]
        for run in (undivided, accumulated)
    )
    assert undivided_scores[0] != pytest.approx(undivided_scores[-1], rel=0.1), "the weights must change"
    assert_same_weights(accumulated, undivided, rtol=1e-4, atol=1e-5)
    assert logged_losses(undivided) == pytest.approx(logged_losses(accumulated), rel=1e-4)
    assert undivided_scores[-1] == pytest.approx(accumulated_scores[-1], rel=1e-3)


def test_out_of_memory_in_validation_reduces_only_evaluation_batch(tool: Tool, set_faults: SetFaults) -> None:
    """Out-of-memory in a prediction also changes only the number of rows per pass."""
    set_faults({"at": "validation", "do": "cuda_oom", "above": 2})
    run = tool.train(tool.write_preset("vilbert"), "--updates", "2", "--seed", "1")
    (failed,) = read_events_of_kind(run, "attempt_failed")
    assert failed["next"] == {"eval_batch": 2} and attempt_outcomes(run) == ["cuda_oom", "ok"]
    assert [(e["update"], e["micro_batch"]) for e in read_events_of_kind(run, "train_started")] == [(0, 4), (1, 4)]
    assert [event["update"] for event in read_events_of_kind(run, "val") if not event["final"]] == [1, 2]
    assert "metrics on the CPU" in tool.errors

    reduced = probabilities(tool("predict", "--no-report"))
    assert "evaluating a micro-batch of 4; retrying with 2 " in tool.errors
    set_faults()
    undivided = probabilities(tool("predict", "--no-report"))
    assert len(undivided) == 5 and reduced == pytest.approx(undivided, abs=1e-6)


def test_nan_loss_stops_run_before_it_reaches_weights(tool: Tool, set_faults: SetFaults) -> None:
    set_faults({"at": "forward", "do": "nan", "update": 3})
    arguments = ("train", tool.write_preset("vilbert"), "--updates", "4", "training.checkpoint_interval=1")
    assert tool.run_for_exit_code(*arguments) == 7
    assert "the loss of update 3 is not a number" in tool.errors
    assert "--resume last" in tool.errors and "--detect-anomaly" in tool.errors
    assert tool("runs")[0]["updates"] == 2
    assert tool.run_for_exit_code("train", "--resume", "last", "--detect-anomaly") == 7
    assert "returned nan values" in tool.errors, "autograd must name the operation"
    assert "--detect-anomaly" not in tool.errors, "an option that is already set must not be suggested"
    set_faults()
    assert tool("train", "--resume", "last")["state"] == "done"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows kills no process when memory runs out")
def test_killed_data_loader_worker_leads_to_fewer_workers(tool: Tool, set_faults: SetFaults) -> None:
    """Kill the worker with SIGKILL, as Linux does when memory runs out."""
    set_faults({"at": "loader_worker", "do": "kill", "above": 1})
    run = tool.train(tool.write_preset("vilbert"), "--updates", "1", "training.num_workers=2")
    assert [event["workers"] for event in read_events_of_kind(run, "train_started")] == [2, 1]
    assert attempt_outcomes(run) == ["host_oom", "ok"]
    assert "with 2 DataLoader workers; retrying with 1" in tool.errors


@pytest.mark.skipif(sys.platform != "linux", reason="Windows and macOS have no /dev/shm")
def test_full_dev_shm_is_reported_with_container_option(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    small_shm_command = private_mounts_command("mount -t tmpfs -o size=16k tmpfs /dev/shm")
    monkeypatch.setattr(attempts, "WORKER_COMMAND", [*small_shm_command, *DEFAULT_WORKER_COMMAND])
    arguments = ("train", tool.write_preset("vilbert"), "--updates", "1", "--no-retry", "training.num_workers=1")
    assert tool.run_for_exit_code(*arguments) == 5
    assert "--shm-size" in tool.errors and "training.num_workers=0" in tool.errors
    assert "--batch-size" not in tool.errors and "free some space" not in tool.errors
    tool("train", tool.write_preset("vilbert"), "--updates", "1", "training.num_workers=1", "--name", "again")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no ulimit")
@pytest.mark.parametrize("mib", mark_wide([50, 300, 400, 500], except_for=(400,)))
def test_worker_without_memory_to_start_fails_with_host_oom(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, mib: int
) -> None:
    """The worker fails to import a library, is aborted in C++, or gets a MemoryError."""
    limited_command = ["sh", "-c", f'ulimit -v {mib << 10} && exec "$@"', "sh"]
    monkeypatch.setattr(attempts, "WORKER_COMMAND", [*limited_command, *DEFAULT_WORKER_COMMAND])
    assert tool.run_for_exit_code("train", tool.write_preset("bert"), "--updates", "1") == 5
    assert "memory" in tool.errors.lower()
    [run] = tool("runs")
    assert run["state"] == "failed: host_oom"
    assert attempt_outcomes(tool.get_run(run)) == ["host_oom"], "the run's page must show this outcome"


def test_next_run_starts_with_known_micro_batch_unless_ignored(tool: Tool, set_faults: SetFaults) -> None:
    def train_and_list_micro_batches(*arguments: str) -> list[int]:
        run = tool.train(tool.write_preset("vilbert"), "--updates", "1", *arguments)
        return [event["micro_batch"] for event in read_events_of_kind(run, "train_started")]

    set_faults({"at": "step", "do": "cuda_oom", "above": 2})
    assert tool.run_for_exit_code("train", tool.write_preset("vilbert"), "--updates", "1", "--no-retry") == 7
    (run,) = list_runs(tool.save_dir)
    assert [path.name for path in (run.path / "attempts").iterdir()] == ["1"]
    set_faults({"at": "backward", "do": "cuda_oom", "above": 2})
    assert train_and_list_micro_batches("--name", "first") == [4, 2]
    assert train_and_list_micro_batches("--name", "second") == [2]
    assert "micro-batch 2, known to fit (--ignore-known-fits" in tool.errors
    set_faults()
    assert train_and_list_micro_batches("--name", "third", "--ignore-known-fits", "--batch-size", "auto") == [4]
    assert "micro-batch 4 (not limited on a CPU)" in tool.errors
    assert micro_batch_store.load_micro_batches() == {}, "an undivided batch that fits must not be stored"


@pytest.mark.usefixtures("only_rc12")
def test_mmf_accumulation_is_correct_at_epoch_end_with_micro_batches_and_resume(
    tool: Tool, set_faults: SetFaults
) -> None:
    """14 rows are five batches. An update takes three of them, the last update of an epoch takes two."""
    arguments = ("--epochs", "2", "--batch-size", "3", "--seed", "3", "training.update_frequency=3")
    uninterrupted = tool.train(write_large_step_preset(tool), "--name", "whole", *arguments)
    set_faults({"at": "forward", "do": "cuda_oom", "above": 2}, {"at": "stepped", "do": "stop", "update": 3})
    assert tool.run_for_exit_code("train", write_large_step_preset(tool), "--name", "parts", *arguments) == 130
    resumed = tool.train("--resume", "parts")
    starts = [(e["update"], e["micro_batch"]) for e in read_events_of_kind(resumed, "train_started")]
    assert starts == [(0, 3), (0, 2), (3, 2)]
    assert len(logged_losses(uninterrupted)) == 4 and logged_losses(resumed) == pytest.approx(
        logged_losses(uninterrupted), rel=1e-4
    )
    assert_same_weights(resumed, uninterrupted, rtol=1e-4, atol=1e-5)


@pytest.mark.wide
@pytest.mark.parametrize("fitting_rows", [13, 6])
def test_auto_batch_size_finds_rows_that_fit_simulated_gpu(
    tool: Tool, set_faults: SetFaults, fitting_rows: int
) -> None:
    """The measurement of GPU memory is simulated, everything else is real."""
    set_faults({"at": "meter", "above": fitting_rows})
    arguments = ("--updates", "5", "--batch-size", "auto", "--no-retry", "training.batch_size=12")
    run = tool.train(tool.write_preset("vilbert"), *arguments)
    rows = [(event["rows"], event["found"]) for event in read_events_of_kind(run, "micro_batch")]
    assert rows == [(2, False), (12 if fitting_rows > 12 else 6, True)]
    assert read_events_of_kind(run, "train_started")[0]["micro_batch"] == 1
    assert list(micro_batch_store.load_micro_batches().values()) == ([] if fitting_rows > 12 else [6])


@pytest.mark.wide
def test_interrupted_micro_batch_search_is_not_stored(tool: Tool, set_faults: SetFaults) -> None:
    """Update 2 is measured with micro-batches of one row, although more rows fit the simulated GPU."""
    set_faults({"at": "meter", "above": 13}, {"at": "stepped", "do": "stop", "update": 2})
    arguments = ("--updates", "5", "--batch-size", "auto", "training.batch_size=12", "training.log_interval=1")
    assert tool.run_for_exit_code("train", tool.write_preset("vilbert"), *arguments) == 130
    (run,) = list_runs(tool.save_dir)
    assert [event["update"] for event in read_events_of_kind(run, "train")] == [1, 2]
    assert micro_batch_store.load_micro_batches() == {}


@pytest.mark.gpu
def test_training_on_full_gpu_uses_smaller_micro_batch(
    tool: Tool, set_faults: SetFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA really runs out of memory: this process holds 6/16 of the GPU, and each row of a batch takes 1/16."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    sixteenth = torch.cuda.mem_get_info()[1] // 16
    allocation = torch.empty(6 * sixteenth, dtype=torch.uint8, device="cuda")
    set_faults({"at": "forward", "do": "allocate", "bytes": sixteenth})
    run = tool.train(tool.write_preset("vilbert"), "--updates", "3", "--batch-size", "14")
    del allocation
    assert [event["micro_batch"] for event in read_events_of_kind(run, "train_started")] == [14, 7]
    (failed,) = read_events_of_kind(run, "attempt_failed")
    assert failed["next"] == {"micro_batch": 7} and attempt_outcomes(run) == ["cuda_oom", "ok"]
    assert list(micro_batch_store.load_micro_batches().values()) == [7]
