"""Sweeps of real runs: the table over seeds, stopped sweeps and pruned tasks."""

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


def start_sweep(tool: Tool, *arguments: str) -> subprocess.Popen[str]:
    """Start ``mmfw sweep run`` with these arguments as a separate process."""
    folders = ("--data-dir", tool.world.data, "--save-dir", tool.save_dir)
    return start_sweep_command("run", *arguments, *folders, stderr=subprocess.PIPE)


def list_task_runs(sweep_dir: Path) -> list[Run]:
    """Return the runs of all tasks of a sweep."""
    return [run for task in sorted(sweep_dir.iterdir()) if task.is_dir() for run in list_runs(task)]


def test_sweep_run_trains_preset_with_three_seeds_in_two_slots(tool: Tool) -> None:
    preset, sweep_dir = tool.write_preset("text"), tool.save_dir / "sweeps" / "text"
    arguments = [preset, "--seeds", "1-3", "--slots", "2", "--updates", "2", "optimizer.params.lr=1e-4,"]
    assert tool.run_for_exit_code("sweep", "run", *arguments) == 2  # the empty value is reported before any task runs
    assert not sweep_dir.exists()
    arguments[-1] = "optimizer.params.lr=1e-4"
    with start_sweep(tool, *arguments, "--json") as process:
        stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    result = json.loads(stdout)
    [row] = result["table"]
    assert row["runs"] == 3 and 0 <= row["auroc"] <= 1 and row["auroc_sd"] is not None
    assert [run.request().training_number("seed") for run in list_task_runs(sweep_dir)] == [1, 2, 3]
    assert all(run_state(run) == "done" for run in list_task_runs(sweep_dir))
    with start_sweep(tool, *arguments) as process:  # all tasks are done
        stdout, stderr = process.communicate()
    assert "±" in stdout and len(list_task_runs(sweep_dir)) == 3
    assert tool.run_for_exit_code("report", "sweeps/text") == 0
    assert tool.errors == "" and Path(tool.output.strip()).parent == sweep_dir
    assert tool.run_for_exit_code("predict", "--best-of", "text", "--no-report", "--json") == 0
    members = [json.loads(line)["members"][0]["run"] for line in tool.output.splitlines()]
    assert members == [f"sweeps/text/Lr_0.0001-Seed_{n}" for n in (1, 2, 3)]
    assert tool.run_for_exit_code("report", members[0]) == 0 and "reports" in tool.output
    assert tool.run_for_exit_code("verify", "runs") == 0 and members[2] in tool.output


def test_invalid_overrides_are_rejected_before_any_task_starts(tool: Tool) -> None:
    preset = tool.write_preset("text")
    for arguments, message in {
        ("optimizer.params.lr=1,zwei",): "lr: expected a number, got 'zwei'",
        ("training.batch_sizes=1,2",): "batch_sizes",
        ("training.trainer=x,y",): "set by mmfw",
        ("--seeds", "1-x"): "1-x",
        ("--seeds", "3-1"): "3-1",
        ("--seeds", "1-3", "training.seed=1,2"): "--seeds and training.seed=1",
        ("--updates", "3", "training.max_updates=1,2"): "--updates and training.max_updates=1",
    }.items():
        assert tool.run_for_exit_code("sweep", "run", preset, *arguments) == 2
        assert message in tool.errors
    assert not tool.save_dir.exists()


@pytest.mark.wide
def test_printed_command_resumes_stopped_sweep(tool: Tool, set_faults: SetFaults, tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    set_faults({"at": "forward", "do": "wait_to_be_stopped", "update": 2, "once": str(reached)})
    preset, sweep_dir = tool.write_preset("text"), tool.save_dir / "sweeps" / "text"
    process = start_sweep(tool, preset, "--seeds", "1-2", "--updates", "4", "--slots", "1")
    while not reached.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stay queued" not in process.stderr.readline():
        pass
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert [task.state for task in load_tasks_by_name(sweep_dir).values()] == ["queued", "queued"]
    assert f"mmfw sweep run {sweep_dir} --slots 1" in stderr.replace("'", "")
    with start_sweep_command("run", sweep_dir, "--slots", "1") as process:
        process.communicate()
    first, second = list_task_runs(sweep_dir)
    assert run_state(first) == run_state(second) == "done"
    assert start_updates(first) == [0, 2]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals for all processes of a job")
@pytest.mark.parametrize("signal_name", mark_wide(["SIGTERM", "SIGUSR1"], except_for=["SIGTERM"]))
def test_signal_to_all_sweep_processes_saves_running_task(tool: Tool, signal_name: str) -> None:
    preset, sweep_dir = tool.write_preset("text"), tool.save_dir / "sweeps" / "text"
    overrides = ("training.num_workers=2", "training.log_interval=1")
    with start_sweep(tool, preset, "--seeds", "1-2", "--slots", "1", "--updates", "100000", *overrides) as process:
        while (
            not [run for run in list_task_runs(sweep_dir) if read_events_of_kind(run, "train")]
            if sweep_dir.exists()
            else True
        ):
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        signal_process_tree(process.pid, getattr(signal, signal_name))
        _, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert [task.state for task in load_tasks_by_name(sweep_dir).values()] == ["queued", "queued"]
    [run] = list_task_runs(sweep_dir)
    assert (run.checkpoints / "current.ckpt").is_file() and run_state(run) == "interrupted"


class _FakePruningSearch(OptunaSearch):
    """Fake search that prunes each task at its first validation."""

    def __init__(self) -> None:
        self.states: list[TaskState] = []

    def propose_task(self) -> Task | None:
        return None

    def list_unstarted_tasks(self) -> list[Task]:
        return []

    def should_prune(self, task: Task, event: Event) -> bool:
        return event["kind"] == "val"

    def record_outcome(self, task: Task) -> None:
        self.states.append(task.state)


@pytest.mark.wide
def test_training_pruned_by_fake_search_is_saved_and_frees_its_slot(tool: Tool) -> None:
    train_command = f"mmfw train '{tool.write_preset('text')}' --data-dir '{tool.world.data}' --updates 100000"
    intervals = "training.evaluation_interval=2 training.log_interval=1"
    specification = make_specification(
        f"template: {{train: \"{train_command} {intervals}\", test: 'echo {{n}}'}}\n---\nn: 1\n"
    )
    sweep = SweepFolder(tool.folder / "sweep")
    search = _FakePruningSearch()
    runner = TaskRunner(sweep, specification.template, False, resume_argv, "now")
    with SweepDisplay(1) as display:
        driver = Driver(sweep, create_local_slots(["cpu"], 1), runner.run, display, search)
        assert driver.run(plan_tasks(specification).tasks) is False
    assert search.states == ["pruned"]
    assert [task.state for task in load_tasks_by_name(sweep.path).values()] == ["pruned"]
    [run] = list_task_runs(sweep.path)
    assert run_state(run) == "interrupted" and (run.checkpoints / "current.ckpt").is_file()
