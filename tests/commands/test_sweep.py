"""``mmfw sweep``: output, errors and hints."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmf_win.commands.train import resume_argv
from mmf_win.console import Progress
from mmf_win.locking import file_lock
from mmf_win.runs.folder import Run
from mmf_win.sweeps import grid
from mmf_win.sweeps.folder import SweepFolder, load_started_tasks
from mmf_win.sweeps.launch import join_specifications
from mmf_win.sweeps.specification import parse_specification
from tests.worlds.small_sweeps import load_tasks_by_name, python_command, write_finished_run
from tests.worlds.tools import MmfwRunner, split_command


class Sweep(MmfwRunner):
    """``mmfw sweep`` with quick programs in a folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(capsys)
        self.folder, self.file, self.output = folder, folder / "params.yaml", folder / "out"

    def write(self, template: str, *choices: str, head: str = "") -> None:
        """Write the sweep file."""
        text = f"template:\n  t: {json.dumps(template, ensure_ascii=False)}\n{head}"
        self.file.write_text("".join([text, *(f"---\n{choice}\n" for choice in choices)]), encoding="utf-8")

    def __call__(self, *arguments: object, code: int = 0) -> str:
        """Run ``mmfw sweep …``."""
        return super().__call__("sweep", *arguments, code=code)

    def run(self, *arguments: object, code: int = 0) -> str:
        """Run ``mmfw sweep run`` on the CPU."""
        return self("run", self.file, "-o", self.output, "-r", "cpu", *arguments, code=code)

    @property
    def hinted(self) -> list[list[str]]:
        """Commands in the hint."""
        hint = "".join(line for line in self.err.splitlines() if line.startswith("hint: "))
        return [split_command(command) for command in re.findall("`mmfw sweep (.*?)`", hint)]


@pytest.fixture
def sweep(user_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """Make a runner in the user's empty folder."""
    monkeypatch.setenv("MMF_SAVE_DIR", str(user_dir / "save"))
    return Sweep(user_dir, capsys)


def test_dry_run_shows_the_tasks_and_writes_nothing(sweep: Sweep) -> None:
    sweep.write("echo {a} {_output}", "a: [1, 'two words']\nnote: x")
    sweep.run("--dry-run", "--slots", 2)
    assert "A_1-Note_x" in sweep.out and str(sweep.output / "A_1-Note_x") in sweep.out
    assert re.search("echo ['\"]two words['\"]", sweep.out)
    assert "2 tasks" in sweep.err and "no command uses note" in sweep.err and "time: unknown" in sweep.err
    assert not sweep.output.exists()
    sweep.run("--dry-run", "--json")
    plan = json.loads(sweep.out)
    assert [task["task"] for task in plan["tasks"]] == ["A_1-Note_x", "A_two words-Note_x"]
    assert (plan["orphans"], plan["slots"], plan["seconds"]) == (["note"], 1, None)


def test_dry_run_of_a_started_sweep_shows_remaining_tasks_and_their_cost(sweep: Sweep) -> None:
    sweep.write(python_command(sweep.folder, "print(1)"), "a: 1")
    sweep.run()
    sweep.write(python_command(sweep.folder, "print(1)"), "a: [1, 2]")
    sweep.run("--dry-run")
    assert "A_1  (success)" in sweep.out and "A_2  (queued)" in sweep.out
    assert "2 tasks, 1 to run" in sweep.err and "from 1 finished before" in sweep.err
    sweep.run("--dry-run", "--force")
    assert "2 to run" in sweep.err
    for option, names in (("--failed", []), ("--debug", ["A_1"])):
        sweep.run("--dry-run", "--json", option)
        assert [task["task"] for task in json.loads(sweep.out)["tasks"]] == names


def test_status_shows_states_and_reasons(sweep: Sweep) -> None:
    sweep.write(
        python_command(sweep.folder, "import sys; sys.exit('bad luck' if sys.argv[1] == '2' else 0)", "{a}"),
        "a: [1, 2]",
    )
    sweep.run(code=7)
    sweep("status", sweep.output)
    assert "1 success, 1 failed" in sweep.err and "t: bad luck" in sweep.out
    [task] = sweep.json("status", sweep.output, "--state", "failed")["tasks"]
    assert (task["name"], task["message"], task["values"]) == ("A_2", "t: bad luck", {"a": 2})


def test_newest_sweep_in_the_save_dir_is_the_default(sweep: Sweep) -> None:
    sweep.write(python_command(sweep.folder, "print(1)"), "a: 1")
    sweep("run", sweep.file, "-r", "cpu")
    for arguments in ([], ["params"], [sweep.folder / "save" / "sweeps" / "params"]):
        sweep("status", *arguments)
        assert "1 success" in sweep.err
    sweep("run", "params", "-r", "cpu")  # run an earlier sweep by its name


def test_table_is_printed_as_text_csv_tsv_and_json(sweep: Sweep) -> None:
    sweep.write(python_command(sweep.folder, "print(1)", "{lr}", "{seed}"), "lr: [0.1, 0.2]\nseed: [1, 2]")
    sweep.run()
    folder = SweepFolder(sweep.output)
    for task, score in zip(load_started_tasks(folder), (0.6, 0.7, 0.8, 0.8), strict=True):
        write_finished_run(folder.task_folder(task.name), score)
    sweep("table", sweep.output, "--baseline", "lr=0.1")
    assert "0.6500 ± 0.0707" in sweep.out and "+0.1500" in sweep.out
    for form, delimiter in (("csv", ","), ("tsv", "\t")):
        sweep("table", sweep.output, "--format", form)
        first = next(csv.DictReader(io.StringIO(sweep.out), delimiter=delimiter))
        assert (first["lr"], first["runs"], float(first["auroc"])) == ("0.2", "2", pytest.approx(0.8))
    sweep("table", sweep.output, "--format", "markdown", code=2)
    assert "'text', 'tsv', 'csv'" in sweep.err
    assert [line["lr"] for line in sweep.json("table", sweep.output)] == [0.2, 0.1]


def test_printed_commands_show_failed_tasks_and_run_them_again(sweep: Sweep) -> None:
    fails = "import pathlib, sys; sys.exit(0 if (pathlib.Path(sys.argv[1]) / 'luck').exists() else 1)"
    sweep.write(
        python_command(sweep.folder, fails, shlex.quote(sweep.folder.as_posix())), "a: [1, 2]", head="resource: [cpu]\n"
    )
    sweep.run(code=7)
    status, run_again = sweep.hinted
    sweep(*status)
    (sweep.folder / "luck").touch()
    sweep(*run_again)
    assert {task.state for task in load_tasks_by_name(sweep.output).values()} == {"success"}


def test_missing_gpu_is_rejected_before_anything_runs(sweep: Sweep) -> None:
    sweep.write("echo {a}", "a: 1", head="resource: [77]\n")
    sweep("run", sweep.file, "-o", sweep.output, code=2)
    assert "no GPU 77" in sweep.err and "-r cpu" in sweep.err
    assert not sweep.output.exists()
    sweep.run("--dry-run")


def test_invalid_gpu_is_rejected_in_a_dry_run(sweep: Sweep) -> None:
    sweep.write("echo {a}", "a: 1", head="resource: [0, banana]\n")
    sweep("run", sweep.file, "--dry-run", code=2)
    assert f"{sweep.file}: 'resource': 'banana' is not a GPU" in sweep.err
    sweep.write("echo {a}", "a: 1")
    sweep.run("--dry-run", "-r", "0,apple", code=2)
    for gpus in ("7", "0, 1", "GPU-8932f937", "MIG-GPU-8932f937/1/2"):
        sweep.run("--dry-run", "-r", gpus)


def test_ambiguous_values_are_reported_and_not_changed(sweep: Sweep) -> None:
    sweep.write("echo {a}", "a: [016, on, 1e-5, 0.00001]")
    sweep.run("--dry-run")
    assert "YAML reads 016 as 14, on as True" in sweep.err and "4 tasks" in sweep.err
    assert "a has values that are equal as numbers; each is a task: 1e-5, 1e-05" in sweep.err


def test_debug_runs_only_the_first_task_and_shows_its_output(sweep: Sweep) -> None:
    sweep.write(python_command(sweep.folder, "print('hello from', *__import__('sys').argv[1:])", "{a}"), "a: [1, 2]")
    sweep.run("--debug")
    assert "hello from 1" in sweep.err and "hello from 2" not in sweep.err
    sweep.run("--debug")  # the task runs again although it has finished
    assert [task.start_count for task in load_tasks_by_name(sweep.output).values()] == [2, 0]


def test_sample_and_title_select_tasks(sweep: Sweep) -> None:
    choices = ("_title: x\na: [1, 2, 3, 4]", "_title: y\na: 5", "_title: y\na: 6")
    sweep.write(python_command(sweep.folder, "print(1)", "{a}"), *choices)
    sweep.run("-t", "y")
    assert "2 choices have the title y" in sweep.err
    assert [task.name for task in load_started_tasks(SweepFolder(sweep.output))] == ["A_5", "A_6"]
    sweep.run("-t", "x", "--sample", "2")
    assert len(load_started_tasks(SweepFolder(sweep.output))) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing PRESET"),
        (("params.yaml", "--seeds", "1-3"), "--seeds requires a preset"),
        (("params.yaml", "lr=1,2"), "KEY=VALUE requires a preset"),
        (("no-such-preset",), "no preset, file or sweep named"),
        (("nope.yaml",), "mmfw sweep run --help"),
        (("/no/such/folder",), "no preset, file or sweep named"),
        ((".",), "sweep.yaml"),
        (("MMBT_GRIDS",), "did you mean mmbt_grid?"),
        (("demo", "logger.wandb.api_key=1,2"), "api_key is named like a secret"),
        (("params.yaml", "-t", "z"), "title z"),
        (("params.yaml", "-c", "z"), "unknown command z"),
    ],
)
def test_invalid_arguments_are_usage_errors(
    sweep: Sweep, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sweep.folder)
    sweep.write("echo {a}", "a: 1")
    sweep("run", *arguments, code=2)
    assert message in sweep.err and "Traceback" not in sweep.err
    assert sorted(path.name for path in sweep.folder.iterdir()) == ["params.yaml"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["sweep", "status"], "mmfw sweep run PRESET"),
        (["sweep", "table"], "mmfw sweep run PRESET"),
        (["sweep", "status", "nope"], "mmfw sweep run PRESET"),
        (["report", "sweeps/nope"], "no run named sweeps/nope"),
        (["report", ""], "no run named"),
    ],
)
def test_missing_sweep_is_an_error(arguments: list[str], text: str, mmfw: MmfwRunner, user_dir: Path) -> None:
    if arguments[0] == "report":
        pytest.importorskip("matplotlib")
    mmfw(*arguments, "--save-dir", user_dir / "save", code=2)
    assert (
        text in mmfw.err
        and ("no sweep" in mmfw.err or "no run named" in mmfw.err)
        and "hint: " in mmfw.err
        and "bug" not in mmfw.err
    )


def test_dry_run_of_a_search_shows_its_trials_and_checks_its_parameters(sweep: Sweep) -> None:
    head = "search: {trials: 3, parameters: {a: [1, 2]}}\n"
    sweep.write("echo {a}", head=head)
    sweep.run("--dry-run")
    assert "3 trials" in sweep.err
    sweep.write("echo {a} {nothing}", head=head)
    sweep.run("--dry-run", code=2)
    assert "params.yaml" in sweep.err and "nothing has no value" in sweep.err
    sweep.run("--debug", code=2)


def test_table_of_a_search_is_ranked_by_its_metric(sweep: Sweep) -> None:
    pytest.importorskip("optuna")
    program = """
import json, pathlib, sys
pathlib.Path(sys.argv[2], "r.json").write_text(json.dumps({"x": int(sys.argv[1])}))
"""
    head = "search: {trials: 3, metric: 'r.json:x', direction: minimize, parameters: {a: [1, 2, 3]}}\n"
    sweep.write(python_command(sweep.folder, program, "{a}", "{_output}"), head=head)
    sweep.run()
    assert [line["r.json:x"] for line in sweep.json("table", sweep.output)] == [1.0, 2.0, 3.0]
    sweep.write(python_command(sweep.folder, program, "{a}", "{_output}"), "_title: x\na: 7", head=head)
    sweep.run("-t", "x", "--force")
    tasks = load_started_tasks(SweepFolder(sweep.output))
    assert {task.values["a"]: task.start_count for task in tasks} == dict.fromkeys((1, 2, 3, 7), 1)
    sweep.write(python_command(sweep.folder, program, "{a}", "{_output}"), head=head.replace("minimize", "maximize"))
    sweep.run(code=2)
    assert "minimize" in sweep.err and "-o" in sweep.err
    sweep.run("-o", sweep.folder / "other")


@pytest.mark.parametrize("metric", ["r.json:y", "no_metric"])
def test_search_with_a_missing_metric_ends_after_its_first_trials(sweep: Sweep, metric: str) -> None:
    pytest.importorskip("optuna")
    head = f"search: {{trials: 30, metric: '{metric}', parameters: {{a: {{low: 1, high: 1000}}}}}}\n"
    sweep.write(python_command(sweep.folder, "print(1)", "{a}"), head=head)
    assert metric in sweep.run(code=2)
    assert 3 <= len(load_started_tasks(SweepFolder(sweep.output))) < 6


def test_data_dir_applies_to_the_commands_of_a_file_and_when_resuming(sweep: Sweep) -> None:
    program = """
import os, pathlib, sys
print(os.environ["MMF_DATA_DIR"])
sys.exit(0 if pathlib.Path(os.environ["MMF_DATA_DIR"], "luck").exists() else 1)
"""
    sweep.write(python_command(sweep.folder, program), "a: 1")
    data = sweep.folder / "my data"
    data.mkdir()
    sweep.run("--data-dir", data, code=7)
    _, resume_arguments = sweep.hinted
    (data / "luck").touch()
    sweep(*resume_arguments)
    logs = [*(sweep.output / "A_1").glob("log.*")]
    assert {line for log in logs for line in log.read_text(encoding="utf-8").split("\n")} == {str(data), ""}
    sweep.write("mmfw train demo --data-dir data", "a: 1")
    errors = sweep.run("--data-dir", data, code=2)
    assert str(sweep.file) in errors and "already set --data-dir" in errors
    sweep.write(python_command(sweep.folder, program), "a: 1")
    assert "nope" in sweep.run("--data-dir", "nope", "--dry-run", code=2)
    sweep.run("--data-dir", data, "--dry-run")
    assert str(data) in sweep.err


def test_sweep_of_a_preset_keeps_edits_of_its_file(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    preset_text = grid.preset_specification_text("demo", [1, 2], ["training.batch_size=8"], [])
    _, text = join_specifications(preset_text, folder)
    edited_text = text.replace("---", "resource: [cpu, cpu]  # mine\n---", 1)
    folder.specification.write_text(edited_text, encoding="utf-8")
    edited, text = join_specifications(preset_text, folder)
    assert (edited.resource, text) == (("cpu", "cpu"), edited_text)
    extended, text = join_specifications(
        grid.preset_specification_text("demo", [3], ["training.batch_size=8"], []), folder
    )
    assert extended.resource == ("cpu", "cpu") and len(extended.choices) == 1 and text.startswith(edited_text)
    assert len(parse_specification(text, folder.specification).choices) == 2


def test_choices_added_by_two_commands_are_both_kept(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SweepFolder(sweep.output)

    def after_the_other(*args: Any, **options: Any) -> Any:
        _, text = join_specifications(grid.preset_specification_text("demo", [1], [], []), folder)
        folder.specification.write_text(text, encoding="utf-8")
        return file_lock(*args, **options)

    monkeypatch.setattr("mmf_win.sweeps.launch.file_lock", after_the_other)
    sweep("run", "demo", "--failed", "-r", "cpu", "-o", sweep.output, "--seeds", "2")  # no task has failed
    text = folder.specification.read_text(encoding="utf-8")
    assert len(parse_specification(text, folder.specification).choices) == 2


def test_total_bar_counts_tasks_left_by_another_driver(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep.write(python_command(sweep.folder, "print(1)", "{a}"), "a: [1, 2]")
    sweep.run()
    folder = SweepFolder(sweep.output).task_folder("A_1")
    bars = []
    with ExitStack() as other_driver:
        other_driver.enter_context(file_lock(folder.lock))
        replace(load_tasks_by_name(sweep.output)["A_1"], state="running", finished_commands=()).save(folder)

        class Bar(Progress):
            def __enter__(self) -> Bar:
                other_driver.close()  # the driver dies as soon as the tasks are counted
                bars.append(self)
                return self

        monkeypatch.setattr("mmf_win.commands.sweep_display.Progress", Bar)
        sweep.run()
    [bar] = bars
    assert (bar.done, bar._scale["total"]) == (1, 1)


@pytest.mark.wide
def test_runs_of_a_preset_are_tracked_when_resumed(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("mlflow", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    track = ["--track", "mlflow", "--track-models", "best", "--track-page"]
    sweep.write("echo {a}", "a: 1")
    assert "--track requires a preset" in sweep.run(*track, code=2)
    monkeypatch.setenv("MMFW_TRACK", "mlflow")
    sweep.run("--dry-run")  # commands of a file may read the variables
    sweep("run", "demo", "--failed", "-r", "cpu", "-o", sweep.output, *track)  # no task has failed
    [command] = parse_specification(
        (sweep.output / "sweep.yaml").read_text(encoding="utf-8"), sweep.file
    ).template.values()
    arguments = shlex.split(command)
    assert arguments[:3] == ["mmfw", "train", "demo"] and arguments[-len(track) :] == track
    run = Run(sweep.folder / "a run")
    assert resume_argv(["mmfw", "train", "demo", *track], run) == ["mmfw", "train", "--resume", str(run.path), *track]


def test_sweep_without_its_file_is_an_error(sweep: Sweep) -> None:
    sweep.write(python_command(sweep.folder, "print(1)"), "a: 1")
    sweep.run()
    (sweep.output / "sweep.yaml").unlink()
    assert "not a sweep (sweep.yaml not found)" in sweep("run", sweep.output, code=2)
    sweep.run()


def test_task_without_its_state_is_not_run_again(sweep: Sweep) -> None:
    sweep.write(python_command(sweep.folder, "print(1)", "{a}"), "a: [1, 2]")
    sweep.run()
    lost = sweep.output / "A_1" / "param"
    lost.unlink()
    assert str(lost) in sweep.run(code=3) and len([*lost.parent.glob("log.*")]) == 1
    sweep.run("--force")
    assert {task.start_count for task in load_tasks_by_name(sweep.output).values()} == {1, 2}


def test_search_without_optuna_names_the_package(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    sweep.write("echo {a}", head="search: {trials: 3, parameters: {a: [1, 2]}}\n")
    sweep.run(code=6)
    assert "[search]" in sweep.err and not sweep.output.exists()
