"""A run that runs out of memory: what its next attempt does, and that the result is the same."""

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

FRESH_WORKER = attempts.WORKER_COMMAND


def without_dropout(tool: Tool) -> str:
    """A ViLBERT without chance and batch normalization, with large steps that grow with the gradients."""
    settings = tool.settings_without_dropout("vilbert")
    settings["training"]["log_interval"] = 1
    # Adam's step is (nearly) the same for every gradient, unless a large eps drowns its denominator.
    settings["optimizer"] = {"params": {"lr": 1.0, "eps": 1.0}}
    settings["scheduler"] = {"params": {"num_warmup_steps": 1}}
    return tool.preset("vilbert", settings=settings)


def test_gradients_of_a_batch_in_parts_are_those_of_the_undivided_batch(tool: Tool, set_faults: SetFaults) -> None:
    """14 rows are a batch of 13, which goes through as 7 and 6, and one of a single row."""
    words = ("train", without_dropout(tool), "--updates", "5", "--seed", "3", "--batch-size", "13")
    whole = tool.get_run(tool(*words, "--name", "whole"))
    set_faults({"at": "forward", "do": "cuda_oom", "above": 7})
    parts = tool.get_run(tool(*words, "--name", "parts"))
    assert [event["micro_batch"] for event in read_events_of_kind(parts, "train_started")] == [13, 7]
    scores, again = (
        [event["metrics"] for event in read_events_of_kind(run, "val") if not event["final"]] for run in (whole, parts)
    )
    assert scores[0] != pytest.approx(scores[-1], rel=0.1), "the weights have to move for what follows"
    assert_same_weights(parts, whole, rtol=1e-4, atol=1e-5)
    assert logged_losses(whole) == pytest.approx(logged_losses(parts), rel=1e-4)
    assert scores[-1] == pytest.approx(again[-1], rel=1e-3)


def test_memory_that_runs_out_in_validation_leaves_training_as_it_is(tool: Tool, set_faults: SetFaults) -> None:
    """And in prediction it changes nothing but the rows at once."""
    set_faults({"at": "validation", "do": "cuda_oom", "above": 2})
    run = tool.train(tool.preset("vilbert"), "--updates", "2", "--seed", "1")
    (failed,) = read_events_of_kind(run, "attempt_failed")
    assert failed["next"] == {"eval_batch": 2} and attempt_outcomes(run) == ["cuda_oom", "ok"]
    assert [(e["update"], e["micro_batch"]) for e in read_events_of_kind(run, "train_started")] == [(0, 4), (1, 4)]
    assert [event["update"] for event in read_events_of_kind(run, "val") if not event["final"]] == [1, 2]
    assert "metrics on the CPU" in tool.errors

    parts = probabilities(tool("predict", "--no-report"))
    assert "evaluating a micro-batch of 4; retrying with 2 " in tool.errors
    set_faults()
    whole = probabilities(tool("predict", "--no-report"))
    assert len(whole) == 5 and parts == pytest.approx(whole, abs=1e-6)


def test_a_loss_that_is_no_number_stops_the_run_before_it_reaches_the_weights(
    tool: Tool, set_faults: SetFaults
) -> None:
    set_faults({"at": "forward", "do": "nan", "update": 3})
    words = ("train", tool.preset("vilbert"), "--updates", "4", "training.checkpoint_interval=1")
    assert tool.run_for_exit_code(*words) == 7
    assert "the loss of update 3 is not a number" in tool.errors
    assert "--resume last" in tool.errors and "--detect-anomaly" in tool.errors
    assert tool("runs")[0]["updates"] == 2
    assert tool.run_for_exit_code("train", "--resume", "last", "--detect-anomaly") == 7
    assert "returned nan values" in tool.errors, "autograd names the operation"
    assert "--detect-anomaly" not in tool.errors, "it has been found"
    set_faults()
    assert tool("train", "--resume", "last")["state"] == "done"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows kills no process for want of memory")
def test_a_killed_data_loader_worker_means_fewer_of_them(tool: Tool, set_faults: SetFaults) -> None:
    """Kill the worker with SIGKILL, as Linux does when memory runs out."""
    set_faults({"at": "loader_worker", "do": "kill", "above": 1})
    run = tool.train(tool.preset("vilbert"), "--updates", "1", "training.num_workers=2")
    assert [event["workers"] for event in read_events_of_kind(run, "train_started")] == [2, 1]
    assert attempt_outcomes(run) == ["host_oom", "ok"]
    assert "with 2 DataLoader workers; retrying with 1" in tool.errors


@pytest.mark.skipif(sys.platform != "linux", reason="Windows and macOS have no /dev/shm")
def test_a_full_dev_shm_is_named_with_what_a_container_needs(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    small = private_mounts_command("mount -t tmpfs -o size=16k tmpfs /dev/shm")
    monkeypatch.setattr(attempts, "WORKER_COMMAND", [*small, *FRESH_WORKER])
    words = ("train", tool.preset("vilbert"), "--updates", "1", "--no-retry", "training.num_workers=1")
    assert tool.run_for_exit_code(*words) == 5
    assert "--shm-size" in tool.errors and "training.num_workers=0" in tool.errors
    assert "--batch-size" not in tool.errors and "free some space" not in tool.errors
    tool("train", tool.preset("vilbert"), "--updates", "1", "training.num_workers=1", "--name", "again")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no process so")
@pytest.mark.parametrize("mib", mark_wide([50, 300, 400, 500], except_for=(400,)))
def test_a_worker_without_memory_to_start_ends_for_want_of_it(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, mib: int
) -> None:
    """It fails to import a library, is aborted in C++, or gets a MemoryError."""
    limited = ["sh", "-c", f'ulimit -v {mib << 10} && exec "$@"', "sh"]
    monkeypatch.setattr(attempts, "WORKER_COMMAND", [*limited, *FRESH_WORKER])
    assert tool.run_for_exit_code("train", tool.preset("bert"), "--updates", "1") == 5
    assert "memory" in tool.errors.lower()
    [run] = tool("runs")
    assert run["state"] == "failed: host_oom"
    assert attempt_outcomes(tool.get_run(run)) == ["host_oom"], "as the page of the run has it"


def test_the_next_run_starts_with_what_fitted_until_it_is_forgotten(tool: Tool, set_faults: SetFaults) -> None:
    def micro_batches(*words: str) -> list[int]:
        run = tool.train(tool.preset("vilbert"), "--updates", "1", *words)
        return [event["micro_batch"] for event in read_events_of_kind(run, "train_started")]

    set_faults({"at": "step", "do": "cuda_oom", "above": 2})
    assert tool.run_for_exit_code("train", tool.preset("vilbert"), "--updates", "1", "--no-retry") == 7
    (run,) = list_runs(tool.save_dir)
    assert [path.name for path in (run.path / "attempts").iterdir()] == ["1"]
    set_faults({"at": "backward", "do": "cuda_oom", "above": 2})
    assert micro_batches("--name", "first") == [4, 2]
    assert micro_batches("--name", "second") == [2]
    assert "micro-batch 2, known to fit (--ignore-known-fits" in tool.errors
    set_faults()
    assert micro_batches("--name", "third", "--ignore-known-fits", "--batch-size", "auto") == [4]
    assert "micro-batch 4 (not limited on a CPU)" in tool.errors
    assert micro_batch_store.load() == {}, "the whole batch fits, so there is nothing to remember"


@pytest.mark.usefixtures("only_rc12")
def test_mmfs_own_accumulation_is_right_at_an_epochs_end_in_parts_and_in_a_run_that_goes_on(
    tool: Tool, set_faults: SetFaults
) -> None:
    """14 rows are five batches, of which an update takes three: the last one of an epoch has two."""
    words = ("--epochs", "2", "--batch-size", "3", "--seed", "3", "training.update_frequency=3")
    whole = tool.train(without_dropout(tool), "--name", "whole", *words)
    set_faults({"at": "forward", "do": "cuda_oom", "above": 2}, {"at": "stepped", "do": "stop", "update": 3})
    assert tool.run_for_exit_code("train", without_dropout(tool), "--name", "parts", *words) == 130
    parts = tool.train("--resume", "parts")
    began = [(e["update"], e["micro_batch"]) for e in read_events_of_kind(parts, "train_started")]
    assert began == [(0, 3), (0, 2), (3, 2)]
    assert len(logged_losses(whole)) == 4 and logged_losses(parts) == pytest.approx(logged_losses(whole), rel=1e-4)
    assert_same_weights(parts, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.wide
@pytest.mark.parametrize("fitting", [13, 6])
def test_auto_takes_the_rows_that_a_fake_gpus_memory_holds(tool: Tool, set_faults: SetFaults, fitting: int) -> None:
    """The machine has no GPU: what measures one is replaced, everything else is real."""
    set_faults({"at": "meter", "above": fitting})
    words = ("--updates", "5", "--batch-size", "auto", "--no-retry", "training.batch_size=12")
    run = tool.train(tool.preset("vilbert"), *words)
    rows = [(event["rows"], event["found"]) for event in read_events_of_kind(run, "micro_batch")]
    assert rows == [(2, False), (12 if fitting > 12 else 6, True)]
    assert read_events_of_kind(run, "train_started")[0]["micro_batch"] == 1
    assert list(micro_batch_store.load().values()) == ([] if fitting > 12 else [6])


@pytest.mark.wide
def test_a_search_that_was_stopped_is_not_remembered(tool: Tool, set_faults: SetFaults) -> None:
    """The second update goes through row by row to be measured, which is not what fits the fake GPU."""
    set_faults({"at": "meter", "above": 13}, {"at": "stepped", "do": "stop", "update": 2})
    words = ("--updates", "5", "--batch-size", "auto", "training.batch_size=12", "training.log_interval=1")
    assert tool.run_for_exit_code("train", tool.preset("vilbert"), *words) == 130
    (run,) = list_runs(tool.save_dir)
    assert [event["update"] for event in read_events_of_kind(run, "train")] == [1, 2]
    assert micro_batch_store.load() == {}


@pytest.mark.gpu
def test_a_gpu_that_is_full_is_trained_on_with_fewer_rows(
    tool: Tool, set_faults: SetFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA itself runs out: this process holds 6/16 of the GPU, and each row of a batch takes 1/16."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    part = torch.cuda.mem_get_info()[1] // 16
    held = torch.empty(6 * part, dtype=torch.uint8, device="cuda")
    set_faults({"at": "forward", "do": "allocate", "bytes": part})
    run = tool.train(tool.preset("vilbert"), "--updates", "3", "--batch-size", "14")
    del held
    assert [event["micro_batch"] for event in read_events_of_kind(run, "train_started")] == [14, 7]
    (failed,) = read_events_of_kind(run, "attempt_failed")
    assert failed["next"] == {"micro_batch": 7} and attempt_outcomes(run) == ["cuda_oom", "ok"]
    assert list(micro_batch_store.load().values()) == [7]
