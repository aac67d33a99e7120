"""Sweeps of real trainings: the table over seeds, what a stop leaves, what a pruned one has saved."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmf_win.commands.sweep_display import SweepDisplay
from mmf_win.commands.train import resume_argv
from mmf_win.protocol import Event
from mmf_win.runs.folder import Run
from mmf_win.runs.history import run_state
from mmf_win.runs.lookup import list_runs
from mmf_win.sweeps.driver import Driver
from mmf_win.sweeps.folder import SweepFolder, Task, TaskState
from mmf_win.sweeps.planning import plan_tasks
from mmf_win.sweeps.search import OptunaSearch
from mmf_win.sweeps.task_runner import TaskRunner, create_local_slots
from tests.endtoend.conftest import SetFaults, Tool, read_events_of_kind, start_updates
from tests.worlds.process_tree import signal_process_tree
from tests.worlds.small_sweeps import load_tasks_by_name, make_specification, start_sweep_command
from tests.worlds.tools import mark_wide

pytestmark = pytest.mark.timeout(400)


def _sweep(tool: Tool, *words: str) -> subprocess.Popen[str]:
    """``mmfw sweep run`` of a preset, as a process of its own."""
    places = ("--data-dir", tool.world.data, "--save-dir", tool.save_dir)
    return start_sweep_command("run", *words, *places, stderr=subprocess.PIPE)


def _runs(output: Path) -> list[Run]:
    return [run for task in sorted(output.iterdir()) if task.is_dir() for run in list_runs(task)]


def test_a_line_runs_a_preset_with_three_seeds_in_two_slots(tool: Tool) -> None:
    preset, output = tool.preset("text"), tool.save_dir / "sweeps" / "text"
    words = [preset, "--seeds", "1-3", "--slots", "2", "--updates", "2", "optimizer.params.lr=1e-4,"]
    assert tool.run_for_exit_code("sweep", "run", *words) == 2  # an empty value, said before anything runs
    assert not output.exists()
    words[-1] = "optimizer.params.lr=1e-4"
    with _sweep(tool, *words, "--json") as process:
        printed, said = process.communicate()
    assert process.returncode == 0, said
    result = json.loads(printed)
    [line] = result["table"]
    assert line["runs"] == 3 and 0 <= line["auroc"] <= 1 and line["auroc_sd"] is not None
    assert [run.request().training_number("seed") for run in _runs(output)] == [1, 2, 3]
    assert all(run_state(run) == "done" for run in _runs(output))
    with _sweep(tool, *words) as process:  # there is nothing left to run
        printed, said = process.communicate()
    assert "±" in printed and len(_runs(output)) == 3
    assert tool.run_for_exit_code("report", "sweeps/text") == 0
    assert tool.errors == "" and Path(tool.output.strip()).parent == output
    assert tool.run_for_exit_code("predict", "--best-of", "text", "--no-report", "--json") == 0
    members = [json.loads(line)["members"][0]["run"] for line in tool.output.splitlines()]
    assert members == [f"sweeps/text/Lr_0.0001-Seed_{n}" for n in (1, 2, 3)]
    assert tool.run_for_exit_code("report", members[0]) == 0 and "reports" in tool.output
    assert tool.run_for_exit_code("verify", "runs") == 0 and members[2] in tool.output


def test_what_no_training_could_do_is_one_error_before_any_task(tool: Tool) -> None:
    preset = tool.preset("text")
    for words, told in {
        ("optimizer.params.lr=1,zwei",): "lr: expected a number, got 'zwei'",
        ("training.batch_sizes=1,2",): "batch_sizes",
        ("training.trainer=x,y",): "set by mmfw",
        ("--seeds", "1-x"): "1-x",
        ("--seeds", "3-1"): "3-1",
        ("--seeds", "1-3", "training.seed=1,2"): "--seeds and training.seed=1",
        ("--updates", "3", "training.max_updates=1,2"): "--updates and training.max_updates=1",
    }.items():
        assert tool.run_for_exit_code("sweep", "run", preset, *words) == 2
        assert told in tool.errors
    assert not tool.save_dir.exists()


@pytest.mark.wide
def test_a_stopped_training_is_resumed_by_the_command_that_is_printed(
    tool: Tool, set_faults: SetFaults, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    set_faults({"at": "forward", "do": "wait_to_be_stopped", "update": 2, "once": str(here)})
    preset, output = tool.preset("text"), tool.save_dir / "sweeps" / "text"
    process = _sweep(tool, preset, "--seeds", "1-2", "--updates", "4", "--slots", "1")
    while not here.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stay queued" not in process.stderr.readline():
        pass
    _, said = process.communicate()
    assert process.returncode == 130
    assert [task.state for task in load_tasks_by_name(output).values()] == ["queued", "queued"]
    assert f"mmfw sweep run {output} --slots 1" in said.replace("'", "")
    with start_sweep_command("run", output, "--slots", "1") as process:
        process.communicate()
    first, second = _runs(output)
    assert run_state(first) == run_state(second) == "done"
    assert start_updates(first) == [0, 2]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals for all processes of a job")
@pytest.mark.parametrize("name", mark_wide(["SIGTERM", "SIGUSR1"], except_for=["SIGTERM"]))
def test_a_signal_to_every_process_of_a_sweep_saves_the_running_task(tool: Tool, name: str) -> None:
    preset, output = tool.preset("text"), tool.save_dir / "sweeps" / "text"
    overrides = ("training.num_workers=2", "training.log_interval=1")
    with _sweep(tool, preset, "--seeds", "1-2", "--slots", "1", "--updates", "100000", *overrides) as process:
        while not [run for run in _runs(output) if read_events_of_kind(run, "train")] if output.exists() else True:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        signal_process_tree(process.pid, getattr(signal, name))
        _, said = process.communicate()
    assert process.returncode == 130, said
    assert [task.state for task in load_tasks_by_name(output).values()] == ["queued", "queued"]
    [run] = _runs(output)
    assert (run.checkpoints / "current.ckpt").is_file() and run_state(run) == "interrupted"


class _PrunesAtOnce(OptunaSearch):
    """A search, for this test, that stops a task at its first validation."""

    def __init__(self) -> None:
        self.told: list[TaskState] = []

    def propose(self) -> Task | None:
        return None

    def unbegun(self) -> list[Task]:
        return []

    def is_hopeless(self, task: Task, event: Event) -> bool:
        return event["kind"] == "val"

    def tell(self, task: Task) -> None:
        self.told.append(task.state)


@pytest.mark.wide
def test_a_training_pruned_by_a_fake_search_has_saved_and_frees_its_slot(tool: Tool) -> None:
    train = f"mmfw train '{tool.preset('text')}' --data-dir '{tool.world.data}' --updates 100000"
    often = "training.evaluation_interval=2 training.log_interval=1"
    asked = make_specification(f"template: {{train: \"{train} {often}\", test: 'echo {{n}}'}}\n---\nn: 1\n")
    sweep = SweepFolder(tool.folder / "sweep")
    search = _PrunesAtOnce()
    runner = TaskRunner(sweep, asked.template, False, resume_argv, "now")
    with SweepDisplay(1) as display:
        driver = Driver(sweep, create_local_slots(["cpu"], 1), runner.run, display, search)
        assert driver.run(plan_tasks(asked).tasks) is False
    assert search.told == ["pruned"]
    assert [task.state for task in load_tasks_by_name(sweep.path).values()] == ["pruned"]
    [run] = _runs(sweep.path)
    assert run_state(run) == "interrupted" and (run.checkpoints / "current.ckpt").is_file()
