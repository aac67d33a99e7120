"""Several processes train one model: real ones, which exchange gradients by gloo.

Two machines are two commands here, which meet at a port of this one.
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
    probabilities,
    read_events_of_kind,
    start_updates,
)
from tests.endtoend.test_resume import SCHEDULE, trained, validated
from tests.endtoend.test_stopping import endless, user
from tests.worlds.fork_server import NO_PRELOAD_VARIABLE
from tests.worlds.liveness import liveness_monitor
from tests.worlds.process_tree import signal_process_tree
from tests.worlds.tools import is_wine, mark_wide, split_command

pytestmark = pytest.mark.skipif(is_wine(), reason="gloo dies under Wine; several processes are not tried on Windows")

TWO = ("--nproc", "2")
# The last digits of two sums that differ in their order grow with the rate.
WORDS = ("--seed", "3", *SCHEDULE[:-1], "optimizer.params.lr=0.0005")


def without_dropout(tool: Tool, name: str = "vilbert") -> str:
    """A preset for runs that are compared: dropout draws other numbers for a part of a batch than for all."""
    return tool.preset(name, settings=tool.settings_without_dropout(name))


def free_address() -> str:
    """One of this machine at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def figures(run: Run, name: str) -> list[Any]:
    return [event[name] for event in trained(run).values()]


@pytest.mark.parametrize(
    ("name", "batch", "count"),
    mark_wide([("visual_bert", 4, 2), ("vilbert", 4, 2), ("vilbert", 3, 3)], except_for=[("visual_bert", 4, 2)]),
)
def test_several_processes_train_as_one_does(tool: Tool, name: str, batch: int, count: int) -> None:
    """14 rows are a few batches and one of two rows, of which three processes have none for the first."""
    words = ("train", without_dropout(tool, name), "--updates", "17", "--batch-size", str(batch), *WORDS)
    one = tool.get_run(tool(*words, "--name", "one"))
    several = tool.get_run(tool(*words, "--name", "several", "--nproc", str(count)))
    [start] = read_events_of_kind(several, "train_started")
    assert (start["processes"], start["batch"]) == (count, batch)
    assert figures(several, "loss") == pytest.approx(figures(one, "loss"), abs=1e-6)
    for key in ("epoch", "lr"):
        assert figures(several, key) == figures(one, key)
    assert len(validated(one)) == 9
    for update, metrics in validated(one).items():
        assert validated(several)[update] == pytest.approx(metrics, abs=1e-6), update
    assert_same_weights(several, one, atol=1e-5)
    predicted = [tool("predict", str(run.path), "--split", "test_seen", "--no-report") for run in (one, several)]
    assert probabilities(predicted[1]) == pytest.approx(probabilities(predicted[0]), abs=1e-5)


@pytest.mark.wide
def test_several_processes_stop_early_together(tool: Tool) -> None:
    """With a rate of zero, no validation after the first is better."""
    early = ("training.early_stop.enabled=True", "training.early_stop.patience=2")
    zero = (*WORDS[:-1], "optimizer.params.lr=0.0")
    run = tool.train(tool.preset("vilbert"), "--updates", "40", *TWO, *zero, *early)
    assert RunRecord.read(run).summary.updates == 6
    assert len([event for event in read_events_of_kind(run, "val") if event["final"]]) == 1


@pytest.mark.wide
def test_a_run_resumed_by_as_many_processes_ends_with_the_same_weights(tool: Tool, set_faults: SetFaults) -> None:
    """Dropout included; the second stop is in the validation of update 4, which is repeated."""
    words = (*TWO, "--updates", "7", *WORDS)
    whole = tool.train(tool.preset("vilbert"), "--name", "whole", *words)
    set_faults(
        {"at": "stepped", "do": "stop", "update": 2, "rank": 1},
        {"at": "validation", "do": "stop", "update": 5, "rank": 1, "once": str(tool.folder / "once")},
    )
    assert tool.run_for_exit_code("train", tool.preset("vilbert"), "--name", "parts", *words) == 130
    assert "stopped at update 2; checkpoint saved" in tool.errors
    assert tool.run_for_exit_code("train", "--resume", "parts", *TWO) == 130
    parts = tool.train("--resume", "parts", *TWO)
    assert start_updates(parts) == [0, 2, 4]
    for key in ("loss", "lr", "epoch"):
        assert figures(parts, key) == figures(whole, key)
    assert_same_weights(parts, whole)


@pytest.mark.wide
def test_a_run_resumes_with_other_numbers_of_processes(tool: Tool, set_faults: SetFaults) -> None:
    """Two, one and two again; each is stopped within a pass."""
    words = ("--updates", "13", *WORDS)
    whole = tool.train(without_dropout(tool), "--name", "whole", *words, *TWO)
    set_faults(*({"at": "stepped", "do": "stop", "update": update} for update in (3, 9)))
    assert tool.run_for_exit_code("train", without_dropout(tool), "--name", "parts", *words, *TWO) == 130
    assert tool.run_for_exit_code("train", "--resume", "parts") == 130
    parts = tool.train("--resume", "parts", *TWO)
    assert [(e["update"], e["processes"]) for e in read_events_of_kind(parts, "train_started")] == [
        (0, 2),
        (3, 1),
        (9, 2),
    ]
    assert figures(parts, "loss") == pytest.approx(figures(whole, "loss"), abs=1e-6)
    for key in ("epoch", "lr"):
        assert figures(parts, key) == figures(whole, key)
    assert_same_weights(parts, whole, atol=1e-5)


def test_when_one_process_is_killed_the_others_end_and_the_run_resumes(tool: Tool, set_faults: SetFaults) -> None:
    words = (*TWO, "--updates", "6", *WORDS)
    with liveness_monitor() as both:
        set_faults(
            {"at": "stepped", "do": "connect", "port": both.port, "update": 1},
            {"at": "stepped", "do": "kill", "update": 4, "rank": 1, "once": str(tool.folder / "once")},
        )
        assert tool.run_for_exit_code("train", tool.preset("vilbert"), *words) == 7
        both.wait_for_processes(2)
        assert both.has_only_dead_processes()
    assert "process 1 was killed" in tool.errors and "--resume last" in tool.errors
    [run] = [Run(path.parent) for path in tool.save_dir.glob("*/*/request.json")]
    assert attempt_outcomes(run) == ["killed"]
    tool.train("--resume", "last", *TWO)
    assert start_updates(run) == [0, 2]


def test_an_error_of_one_process_is_the_outcome(
    tool: Tool, set_faults: SetFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes start as a user's do, see ``tests/worlds/fork_server.py``."""
    monkeypatch.setenv(NO_PRELOAD_VARIABLE, "1")
    set_faults({"at": "forward", "do": "nan", "update": 3, "rank": 1})
    assert tool.run_for_exit_code("train", tool.preset("vilbert"), *TWO, "--updates", "6", *WORDS) == 7
    assert "the loss of update 3 is not a number" in tool.errors


@pytest.mark.wide
def test_after_a_raised_out_of_memory_of_one_process_all_have_a_smaller_micro_batch(
    tool: Tool, set_faults: SetFaults
) -> None:
    """The error is torch's own, but a hook raises it: this machine has no GPU."""
    preset, words = without_dropout(tool), (*TWO, "--updates", "5", *WORDS)
    whole = tool.train(preset, "--name", "whole", *words)
    set_faults({"at": "backward", "do": "cuda_oom", "update": 3, "above": 1, "rank": 1})
    parts = tool.train(preset, "--name", "parts", *words)
    [failed] = read_events_of_kind(parts, "attempt_failed")
    assert failed["next"] == {"micro_batch": 2} and attempt_outcomes(parts) == ["cuda_oom", "ok"]
    assert start_updates(parts) == [0, 2]
    assert figures(parts, "loss") == pytest.approx(figures(whole, "loss"), abs=1e-6)


@pytest.mark.wide
def test_ctrl_c_ends_a_training_of_which_one_process_hangs(tool: Tool, set_faults: SetFaults) -> None:
    words = (*endless(tool), *TWO, "--stop-timeout", "2", "training.checkpoint_interval=2")
    with liveness_monitor() as both:
        set_faults(
            {"at": "stepped", "do": "connect", "port": both.port, "update": 1},
            {"at": "stepped", "do": "hang_in_c", "update": 3, "rank": 1},
        )
        with user(tool, *words) as somebody:
            run = somebody.sees("checkpoint")
            somebody.process.send_signal(signal.SIGINT)
            assert somebody.gets_the_prompt_back() == 130
        both.wait_for_processes(2)
        assert both.has_only_dead_processes()
    assert "--resume last" in somebody.read
    assert start_updates(run) == [0]


@pytest.mark.wide
def test_ctrl_c_while_processes_start_ends_them_at_once(tool: Tool) -> None:
    with user(tool, *endless(tool), *TWO, "--stop-timeout", "600") as somebody:
        run = somebody.sees("run_started")
        somebody.process.send_signal(signal.SIGINT)
        assert somebody.gets_the_prompt_back() == 130
    assert "nothing new to save" in somebody.read
    assert attempt_outcomes(run) == ["interrupted"]


@pytest.mark.wide
def test_when_mmfw_and_its_keeper_are_killed_all_processes_save_and_leave(tool: Tool, set_faults: SetFaults) -> None:
    with liveness_monitor() as both:
        set_faults({"at": "stepped", "do": "connect", "port": both.port, "update": 1})
        with user(tool, *endless(tool), *TWO) as somebody:
            run = somebody.sees("train")
            [start] = read_events_of_kind(run, "run_started")
            worker = Path(f"/proc/{start['pid']}/stat").read_text(encoding="utf-8")
            somebody.process.send_signal(signal.SIGSTOP)  # each would end the training when the other dies
            os.kill(int(worker.rpartition(")")[2].split()[1]), signal.SIGKILL)
            somebody.process.kill()
        both.wait_for_processes(2)
        assert both.has_only_dead_processes()
    while not run.outcome_file.exists():  # the launcher writes it after they have left
        time.sleep(0.02)
    end = AttemptOutcome.load(run.outcome_file)
    assert end is not None and end.kind == "interrupted"
    assert (run.checkpoints / "current.ckpt").is_file()


@pytest.mark.wide
@pytest.mark.parametrize("send", [os.kill, signal_process_tree])
def test_ctrl_c_or_a_signal_to_every_process_saves_and_all_leave(tool: Tool, send: Callable[[int, int], None]) -> None:
    with user(tool, *endless(tool, workers=1), *TWO) as somebody:
        run = somebody.sees("train")
        send(somebody.process.pid, signal.SIGINT if send is os.kill else signal.SIGTERM)
        assert somebody.gets_the_prompt_back() == 130
    updates = RunRecord.read(run).summary.updates
    assert f"stopped at update {updates}; checkpoint saved" in somebody.read
    tool.train("--resume", "last", "--updates", str(updates + 1), *TWO)
    assert start_updates(run) == [0, updates]


@pytest.mark.wide
def test_two_machines_train_as_one_does(tool: Tool) -> None:
    """They share no folder for runs, so the second has none of the first one's checkpoints."""
    preset, words = without_dropout(tool), ("--updates", "5", *WORDS)
    one = tool.train(preset, "--name", "one", *words)
    machines = ("--nnodes", "2", "--rdzv", free_address())
    other = [*("train", preset), *words, *machines, "--node-rank", "1", "--name", "other"]
    with user(tool, *other) as somebody:
        two = tool.train(preset, "--name", "two", *words, *machines, "--node-rank", "0")
        assert somebody.gets_the_prompt_back() == 0, somebody.read
    assert figures(two, "loss") == pytest.approx(figures(one, "loss"), abs=1e-6)
    assert_same_weights(two, one, atol=1e-5)
    again = ("--updates", "7", *machines)
    with user(tool, "train", "--resume", str(two.checkpoints / "current.ckpt"), *again, "--node-rank", "1") as somebody:
        tool.train("--resume", two.id, *again, "--node-rank", "0")
        assert somebody.gets_the_prompt_back() == 0, somebody.read
    tool.train("--resume", one.id, "--updates", "7")
    assert figures(two, "loss") == pytest.approx(figures(one, "loss"), abs=1e-6)
    final = [[event["metrics"] for event in read_events_of_kind(run, "val") if event["final"]] for run in (one, two)]
    assert len(final[0]) == 2 and final[1] == [pytest.approx(metrics, abs=1e-6) for metrics in final[0]]


@pytest.mark.wide
def test_ctrl_c_on_one_machine_saves_and_stops_all(tool: Tool) -> None:
    words = (*endless(tool), "--nnodes", "2", "--rdzv", free_address())
    with (
        user(tool, *words, "--name", "first", "--node-rank", "0") as first,
        user(tool, *words, "--name", "other", "--node-rank", "1") as other,
    ):
        first.sees("train")
        other.process.send_signal(signal.SIGINT)
        assert (first.gets_the_prompt_back(), other.gets_the_prompt_back()) == (130, 130)
    assert "checkpoint saved" in first.read and "resume with: mmfw train --resume" in first.read
    assert "--resume" not in other.read and "nothing saved" not in other.read


def test_a_batch_that_cannot_be_divided_is_refused_before_training(tool: Tool) -> None:
    assert tool.run_for_exit_code("train", tool.preset("bert"), "--nproc", "3") == 2
    assert "1, 2, 4" in tool.errors
    assert not tool.save_dir.exists()


def test_what_another_launcher_left_in_the_environment_changes_nothing(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    run = tool.train(tool.preset("bert"), "--updates", "1")
    assert "RANK, WORLD_SIZE" in tool.errors
    assert read_events_of_kind(run, "train_started")[0]["processes"] == 1


@pytest.mark.wide
def test_inside_torchrun_the_line_to_type_instead_is_printed(tool: Tool) -> None:
    places = ("--data-dir", str(tool.world.data), "--save-dir", str(tool.save_dir))
    train = ("-m", "mmf_win", "train", tool.preset("vilbert"), "--updates", "1", *places)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, *train], capture_output=True, encoding="utf-8")
    assert done.returncode != 0
    command = re.findall("hint: run `mmfw (.*)`", done.stderr)[0]
    assert not tool.save_dir.exists()
    run = tool.get_run(tool(*split_command(command)))
    assert read_events_of_kind(run, "train_started")[0]["processes"] == 2


@pytest.mark.wide
def test_a_meeting_to_which_nobody_comes_is_given_up(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the worker has less patience than one of a user's."""
    impatient = "from mmf_win.worker import entry, launcher; from pathlib import Path; import sys"
    impatient += "; launcher._RENDEZVOUS_SECONDS = 2; sys.exit(entry.main(Path(sys.argv[1])))"
    monkeypatch.setattr(attempts, "WORKER_COMMAND", [sys.executable, "-c", impatient])
    meeting = free_address()
    machines = ("--nnodes", "2", "--node-rank", "1", "--rdzv", meeting)
    assert tool.run_for_exit_code("train", tool.preset("bert"), *machines) == 6
    assert f"{meeting}: cannot connect 2 machines" in tool.errors and "--rdzv" in tool.errors
