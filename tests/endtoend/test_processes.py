"""Distributed training with real processes, which exchange gradients through gloo.

Two commands, connected through a local port, stand for two machines.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmf_win.protocol import AttemptOutcome
from mmf_win.runs import attempts
from mmf_win.runs.folder import Run
from mmf_win.runs.history import RunRecord
from tests.endtoend.conftest import (
    SetFaults,
    Tool,
    assert_same_weights,
    attempt_outcomes,
    endless_training,
    probabilities,
    read_events_of_kind,
    start_command,
    start_updates,
)
from tests.endtoend.test_resume import SCHEDULE, read_train_events, read_validation_metrics
from tests.worlds.fork_server import NO_PRELOAD_VARIABLE
from tests.worlds.liveness import liveness_monitor
from tests.worlds.process_tree import signal_process_tree
from tests.worlds.tools import is_wine, mark_wide, split_command

pytestmark = pytest.mark.skipif(is_wine(), reason="gloo crashes under Wine; several processes are untested on Windows")

TWO_PROCESSES = ("--nproc", "2")
SEED_AND_SCHEDULE = ("--seed", "3", *SCHEDULE)
# A small learning rate limits the effect of rounding, which depends on the order of summation.
COMMON_ARGUMENTS = (*SEED_AND_SCHEDULE, "optimizer.params.lr=0.0005")


def write_preset_without_dropout(tool: Tool, name: str = "vilbert") -> str:
    """Write a preset for runs that are compared, since dropout depends on how batches are divided; return its path."""
    return tool.write_preset(name, settings=tool.settings_without_dropout(name))


def find_free_address() -> str:
    """Return an address of this machine at which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def list_train_values(run: Run, name: str) -> list[Any]:
    """Return the values of a field of the train events, one per update."""
    return [event[name] for event in read_train_events(run).values()]


@pytest.mark.parametrize(
    ("name", "batch", "count"),
    mark_wide([("visual_bert", 4, 2), ("vilbert", 4, 2), ("vilbert", 3, 3)], except_for=[("visual_bert", 4, 2)]),
)
def test_several_processes_train_like_one(tool: Tool, name: str, batch: int, count: int) -> None:
    """The last batch of the 14 rows has two rows, so one of three processes gets none."""
    preset = write_preset_without_dropout(tool, name)
    arguments = ("train", preset, "--updates", "17", "--batch-size", str(batch), *COMMON_ARGUMENTS)
    single = tool.get_run(tool(*arguments, "--name", "one"))
    distributed = tool.get_run(tool(*arguments, "--name", "several", "--nproc", str(count)))
    [start] = read_events_of_kind(distributed, "train_started")
    assert (start["processes"], start["batch"]) == (count, batch)
    assert list_train_values(distributed, "loss") == pytest.approx(list_train_values(single, "loss"), abs=1e-6)
    for key in ("epoch", "lr"):
        assert list_train_values(distributed, key) == list_train_values(single, key)
    assert len(read_validation_metrics(single)) == 9
    for update, metrics in read_validation_metrics(single).items():
        assert read_validation_metrics(distributed)[update] == pytest.approx(metrics, abs=1e-6), update
    assert_same_weights(distributed, single, atol=1e-5)
    predictions = [
        tool("predict", str(run.path), "--split", "test_seen", "--no-report") for run in (single, distributed)
    ]
    assert probabilities(predictions[1]) == pytest.approx(probabilities(predictions[0]), abs=1e-5)


@pytest.mark.wide
def test_early_stopping_ends_all_processes_together(tool: Tool) -> None:
    """With a learning rate of zero, no validation is better than the first."""
    early_stopping = ("training.early_stop.enabled=True", "training.early_stop.patience=2")
    zero_rate = (*SEED_AND_SCHEDULE, "optimizer.params.lr=0.0")
    run = tool.train(tool.write_preset("vilbert"), "--updates", "40", *TWO_PROCESSES, *zero_rate, *early_stopping)
    assert RunRecord.read(run).summary.updates == 6
    assert len([event for event in read_events_of_kind(run, "val") if event["final"]]) == 1


@pytest.mark.wide
def test_run_resumed_with_same_number_of_processes_has_same_weights(tool: Tool, set_faults: SetFaults) -> None:
    """Dropout is enabled; the second stop is in the validation of update 4, which is repeated."""
    arguments = (*TWO_PROCESSES, "--updates", "7", *COMMON_ARGUMENTS)
    uninterrupted = tool.train(tool.write_preset("vilbert"), "--name", "whole", *arguments)
    set_faults(
        {"at": "stepped", "do": "stop", "update": 2, "rank": 1},
        {"at": "validation", "do": "stop", "update": 5, "rank": 1, "once": str(tool.folder / "once")},
    )
    assert tool.run_for_exit_code("train", tool.write_preset("vilbert"), "--name", "parts", *arguments) == 130
    assert "stopped at update 2; checkpoint saved" in tool.errors
    assert tool.run_for_exit_code("train", "--resume", "parts", *TWO_PROCESSES) == 130
    resumed = tool.train("--resume", "parts", *TWO_PROCESSES)
    assert start_updates(resumed) == [0, 2, 4]
    for key in ("loss", "lr", "epoch"):
        assert list_train_values(resumed, key) == list_train_values(uninterrupted, key)
    assert_same_weights(resumed, uninterrupted)


@pytest.mark.wide
def test_run_resumes_with_different_number_of_processes(tool: Tool, set_faults: SetFaults) -> None:
    """The attempts have two, one and two processes; the first two are stopped within an epoch."""
    preset, arguments = write_preset_without_dropout(tool), ("--updates", "13", *COMMON_ARGUMENTS)
    uninterrupted = tool.train(preset, "--name", "whole", *arguments, *TWO_PROCESSES)
    set_faults(*({"at": "stepped", "do": "stop", "update": update} for update in (3, 9)))
    assert tool.run_for_exit_code("train", preset, "--name", "parts", *arguments, *TWO_PROCESSES) == 130
    assert tool.run_for_exit_code("train", "--resume", "parts") == 130
    resumed = tool.train("--resume", "parts", *TWO_PROCESSES)
    assert [(e["update"], e["processes"]) for e in read_events_of_kind(resumed, "train_started")] == [
        (0, 2),
        (3, 1),
        (9, 2),
    ]
    assert list_train_values(resumed, "loss") == pytest.approx(list_train_values(uninterrupted, "loss"), abs=1e-6)
    for key in ("epoch", "lr"):
        assert list_train_values(resumed, key) == list_train_values(uninterrupted, key)
    assert_same_weights(resumed, uninterrupted, atol=1e-5)


def test_other_processes_end_after_one_is_killed_and_run_resumes(tool: Tool, set_faults: SetFaults) -> None:
    arguments = (*TWO_PROCESSES, "--updates", "6", *COMMON_ARGUMENTS)
    with liveness_monitor() as monitor:
        set_faults(
            {"at": "stepped", "do": "connect", "port": monitor.port, "update": 1},
            {"at": "stepped", "do": "kill", "update": 4, "rank": 1, "once": str(tool.folder / "once")},
        )
        assert tool.run_for_exit_code("train", tool.write_preset("vilbert"), *arguments) == 7
        monitor.wait_for_processes(2)
        assert monitor.wait_until_all_exited()
    assert "process 1 was killed" in tool.errors and "--resume last" in tool.errors
    [run] = [Run(path.parent) for path in tool.save_dir.glob("*/*/request.json")]
    assert attempt_outcomes(run) == ["killed"]
    tool.train("--resume", "last", *TWO_PROCESSES)
    assert start_updates(run) == [0, 2]


def test_error_of_one_process_is_the_outcome(
    tool: Tool, set_faults: SetFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes start without preloaded imports, as for a user; see ``tests/worlds/fork_server.py``."""
    monkeypatch.setenv(NO_PRELOAD_VARIABLE, "1")
    set_faults({"at": "forward", "do": "nan", "update": 3, "rank": 1})
    arguments = (*TWO_PROCESSES, "--updates", "6", *COMMON_ARGUMENTS)
    assert tool.run_for_exit_code("train", tool.write_preset("vilbert"), *arguments) == 7
    assert "the loss of update 3 is not a number" in tool.errors


@pytest.mark.wide
def test_all_processes_get_smaller_micro_batch_after_oom_of_one(tool: Tool, set_faults: SetFaults) -> None:
    """A hook raises torch's own error, since this machine has no GPU."""
    preset, arguments = write_preset_without_dropout(tool), (*TWO_PROCESSES, "--updates", "5", *COMMON_ARGUMENTS)
    undivided = tool.train(preset, "--name", "whole", *arguments)
    set_faults({"at": "backward", "do": "cuda_oom", "update": 3, "above": 1, "rank": 1})
    accumulated = tool.train(preset, "--name", "parts", *arguments)
    [failed] = read_events_of_kind(accumulated, "attempt_failed")
    assert failed["next"] == {"micro_batch": 2} and attempt_outcomes(accumulated) == ["cuda_oom", "ok"]
    assert start_updates(accumulated) == [0, 2]
    assert list_train_values(accumulated, "loss") == pytest.approx(list_train_values(undivided, "loss"), abs=1e-6)


@pytest.mark.wide
def test_ctrl_c_ends_training_with_hanging_process(tool: Tool, set_faults: SetFaults) -> None:
    arguments = (*endless_training(tool), *TWO_PROCESSES, "--stop-timeout", "2", "training.checkpoint_interval=2")
    with liveness_monitor() as monitor:
        set_faults(
            {"at": "stepped", "do": "connect", "port": monitor.port, "update": 1},
            {"at": "stepped", "do": "hang_in_c", "update": 3, "rank": 1},
        )
        with start_command(tool, *arguments) as command:
            run = command.wait_for_event("checkpoint")
            command.process.send_signal(signal.SIGINT)
            assert command.wait_for_exit() == 130
        monitor.wait_for_processes(2)
        assert monitor.wait_until_all_exited()
    assert "--resume last" in command.output
    assert start_updates(run) == [0]


@pytest.mark.wide
def test_ctrl_c_during_start_ends_processes_at_once(tool: Tool) -> None:
    with start_command(tool, *endless_training(tool), *TWO_PROCESSES, "--stop-timeout", "600") as command:
        run = command.wait_for_event("run_started")
        command.process.send_signal(signal.SIGINT)
        assert command.wait_for_exit() == 130
    assert "nothing new to save" in command.output
    assert attempt_outcomes(run) == ["interrupted"]


@pytest.mark.wide
def test_processes_save_and_exit_after_mmfw_and_keeper_are_killed(tool: Tool, set_faults: SetFaults) -> None:
    with liveness_monitor() as monitor:
        set_faults({"at": "stepped", "do": "connect", "port": monitor.port, "update": 1})
        with start_command(tool, *endless_training(tool), *TWO_PROCESSES) as command:
            run = command.wait_for_event("train")
            [start] = read_events_of_kind(run, "run_started")
            worker_stat = Path(f"/proc/{start['pid']}/stat").read_text(encoding="utf-8")
            command.process.send_signal(signal.SIGSTOP)  # each of the two ends the training if the other dies
            os.kill(int(worker_stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
            command.process.kill()
        monitor.wait_for_processes(2)
        assert monitor.wait_until_all_exited()
    while not run.outcome_file.exists():  # the launcher writes it after the processes have exited
        time.sleep(0.02)
    outcome = AttemptOutcome.load(run.outcome_file)
    assert outcome is not None and outcome.kind == "interrupted"
    assert (run.checkpoints / "current.ckpt").is_file()


@pytest.mark.wide
@pytest.mark.parametrize("send", [os.kill, signal_process_tree])
def test_ctrl_c_or_signal_to_all_processes_saves_and_ends_them(tool: Tool, send: Callable[[int, int], None]) -> None:
    with start_command(tool, *endless_training(tool, workers=1), *TWO_PROCESSES) as command:
        run = command.wait_for_event("train")
        send(command.process.pid, signal.SIGINT if send is os.kill else signal.SIGTERM)
        assert command.wait_for_exit() == 130
    updates = RunRecord.read(run).summary.updates
    assert f"stopped at update {updates}; checkpoint saved" in command.output
    tool.train("--resume", "last", "--updates", str(updates + 1), *TWO_PROCESSES)
    assert start_updates(run) == [0, updates]


@pytest.mark.wide
def test_two_machines_train_like_one(tool: Tool) -> None:
    """The machines share no folder of runs, so the second has no checkpoints of the first."""
    preset, arguments = write_preset_without_dropout(tool), ("--updates", "5", *COMMON_ARGUMENTS)
    single = tool.train(preset, "--name", "one", *arguments)
    machines = ("--nnodes", "2", "--rdzv", find_free_address())
    second_machine = [*("train", preset), *arguments, *machines, "--node-rank", "1", "--name", "other"]
    with start_command(tool, *second_machine) as command:
        distributed = tool.train(preset, "--name", "two", *arguments, *machines, "--node-rank", "0")
        assert command.wait_for_exit() == 0, command.output
    assert list_train_values(distributed, "loss") == pytest.approx(list_train_values(single, "loss"), abs=1e-6)
    assert_same_weights(distributed, single, atol=1e-5)
    resume_options = ("--updates", "7", *machines)
    with start_command(
        tool, "train", "--resume", str(distributed.checkpoints / "current.ckpt"), *resume_options, "--node-rank", "1"
    ) as command:
        tool.train("--resume", distributed.id, *resume_options, "--node-rank", "0")
        assert command.wait_for_exit() == 0, command.output
    tool.train("--resume", single.id, "--updates", "7")
    assert list_train_values(distributed, "loss") == pytest.approx(list_train_values(single, "loss"), abs=1e-6)
    final = [
        [event["metrics"] for event in read_events_of_kind(run, "val") if event["final"]]
        for run in (single, distributed)
    ]
    assert len(final[0]) == 2 and final[1] == [pytest.approx(metrics, abs=1e-6) for metrics in final[0]]


@pytest.mark.wide
def test_ctrl_c_on_one_machine_saves_and_stops_all_machines(tool: Tool) -> None:
    arguments = (*endless_training(tool), "--nnodes", "2", "--rdzv", find_free_address())
    with (
        start_command(tool, *arguments, "--name", "first", "--node-rank", "0") as first,
        start_command(tool, *arguments, "--name", "other", "--node-rank", "1") as second,
    ):
        first.wait_for_event("train")
        second.process.send_signal(signal.SIGINT)
        assert (first.wait_for_exit(), second.wait_for_exit()) == (130, 130)
    assert "checkpoint saved" in first.output and "resume with `mmfw train --resume" in first.output
    assert "--resume" not in second.output and "nothing saved" not in second.output


def test_batch_not_divisible_by_processes_is_refused_before_training(tool: Tool) -> None:
    assert tool.run_for_exit_code("train", tool.write_preset("bert"), "--nproc", "3") == 2
    assert "1, 2, 4" in tool.errors
    assert not tool.save_dir.exists()


def test_variables_of_another_launcher_are_ignored_with_warning(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    run = tool.train(tool.write_preset("bert"), "--updates", "1")
    assert "RANK, WORLD_SIZE" in tool.errors
    assert read_events_of_kind(run, "train_started")[0]["processes"] == 1


@pytest.mark.wide
def test_equivalent_command_is_printed_inside_torchrun(tool: Tool) -> None:
    folder_options = ("--data-dir", str(tool.world.data), "--save-dir", str(tool.save_dir))
    train_command = ("-m", "mmf_win", "train", tool.write_preset("vilbert"), "--updates", "1", *folder_options)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.run([*torchrun, *train_command], capture_output=True, encoding="utf-8")
    assert process.returncode != 0
    command = re.findall("hint: run `mmfw (.*)`", process.stderr)[0]
    assert not tool.save_dir.exists()
    run = tool.get_run(tool(*split_command(command)))
    assert read_events_of_kind(run, "train_started")[0]["processes"] == 2


@pytest.mark.wide
def test_rendezvous_without_other_machine_times_out(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's timeout is shorter than a user's."""
    worker_code = "from mmf_win.worker import entry, launcher; from pathlib import Path; import sys"
    worker_code += "; launcher._RENDEZVOUS_SECONDS = 2; sys.exit(entry.main(Path(sys.argv[1])))"
    monkeypatch.setattr(attempts, "WORKER_COMMAND", [sys.executable, "-c", worker_code])
    address = find_free_address()
    machines = ("--nnodes", "2", "--node-rank", "1", "--rdzv", address)
    assert tool.run_for_exit_code("train", tool.write_preset("bert"), *machines) == 6
    assert f"{address}: cannot connect 2 machines" in tool.errors and "--rdzv" in tool.errors
