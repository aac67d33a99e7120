"""State in the folder of a task, its lock, and the commands that run again."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmf_win.errors import DataError, UsageError
from mmf_win.files import read_json, write_json
from mmf_win.locking import file_lock
from mmf_win.sweeps.folder import (
    SweepFolder,
    Task,
    load_started_tasks,
    load_task,
    merge_tasks,
    read_yaml,
    require_intact_records,
    write_yaml,
)
from mmf_win.sweeps.planning import list_tasks, plan_tasks
from mmf_win.sweeps.specification import Choice, Specification
from mmf_win.sweeps.task_runner import Slot, TaskRunner, TaskUpdate
from tests.worlds.small_sweeps import (
    forbid_resume,
    make_specification,
    python_command,
    write_ended_task,
    write_finished_run,
)

_CPU = Slot(0, "cpu", {})
_FAILING_PROGRAM = "import sys; sys.exit('no')"


def _make_specification(values: str = "[1, 2, 3]", default: int = 0) -> Specification:
    template = "{train: 'echo {a} {b}', test: 'echo {a}'}"
    return make_specification(f"template: {template}\ndefault: {{b: {default}}}\n---\na: {values}\n")


@pytest.fixture
def sweep(user_dir: Path) -> SweepFolder:
    """Return an empty folder of a sweep."""
    folder = SweepFolder(user_dir / "sweep")
    folder.path.mkdir()
    return folder


def _load_tasks(sweep: SweepFolder, specification: Specification | None = None) -> list[Task]:
    return merge_tasks(plan_tasks(specification or _make_specification()).tasks, load_started_tasks(sweep))


def _run(
    sweep: SweepFolder, task: Task, *programs: str, commands: tuple[str, ...] = ("train", "test")
) -> tuple[Task, bool]:
    """Run a task; return its new state, and whether it was started."""
    program_of = zip(commands, programs or ("", ""), strict=False)
    template = {name: python_command(sweep.path.parent, program) for name, program in program_of}
    updates: list[TaskUpdate] = []
    after = TaskRunner(sweep, template, shell=False, resume=forbid_resume, timestamp="now").run(
        task, _CPU, updates.append
    )
    return after, any(isinstance(news, Task) for news in updates)


def test_successful_task_has_no_remaining_commands(sweep: SweepFolder) -> None:
    for task in _load_tasks(sweep):
        assert _run(sweep, task)[0].state == "success"
    again = _load_tasks(sweep, _make_specification("[1, 2, 3, 4]"))
    assert [task.remaining_commands for task in again] == [[], [], [], ["train", "test"]]
    assert [task.state for task in again] == [*["success"] * 3, "queued"]
    assert [_run(sweep, task)[1] for task in again] == [False, False, False, True]


def test_finished_command_of_a_failed_task_does_not_remain(sweep: SweepFolder) -> None:
    first = _load_tasks(sweep)[0]
    failed, _ = _run(sweep, first, "", _FAILING_PROGRAM)
    assert (failed.state, failed.command, failed.message) == ("failed", "test", "test: no")
    assert load_task(sweep.task_folder("A_1")) == replace(failed, commands=("train", "test"))
    current = _load_tasks(sweep)[0]
    assert (current.state, current.remaining_commands, current.start_count) == ("failed", ["test"], 1)
    assert _run(sweep, first)[0] == failed  # a driver that started before the failure does not run it again
    assert _run(sweep, current)[0].state == "success"
    assert len([*sweep.task_folder("A_1").path.glob("log.train.*")]) == 1


def test_finished_commands_can_be_reset(sweep: SweepFolder) -> None:
    _run(sweep, _load_tasks(sweep)[0])
    for commands, remaining in ((["test"], ["test"]), (["train", "test"], ["train", "test"])):
        with file_lock(sweep.task_folder("A_1").lock), pytest.raises(UsageError):
            _load_tasks(sweep)[0].with_commands_reset(commands).reset_record(
                sweep.task_folder("A_1"), UsageError("busy")
            )
        assert _load_tasks(sweep)[0].remaining_commands == []
        _load_tasks(sweep)[0].with_commands_reset(commands).reset_record(sweep.task_folder("A_1"), UsageError("busy"))
        assert (_load_tasks(sweep)[0].state, _load_tasks(sweep)[0].remaining_commands) == ("queued", remaining)
        _run(sweep, _load_tasks(sweep)[0])
    assert (_load_tasks(sweep)[0].state, _load_tasks(sweep)[0].start_count) == ("success", 3)
    _load_tasks(sweep)[1].with_commands_reset(["train"]).reset_record(sweep.task_folder("A_2"), UsageError("busy"))
    assert not sweep.task_folder("A_2").path.exists()


def test_running_one_command_leaves_the_other_queued(sweep: SweepFolder) -> None:
    assert _run(sweep, _load_tasks(sweep)[0], commands=("test",))[0].state == "success"
    assert next((task.state, task.remaining_commands) for task in _load_tasks(sweep)) == ("queued", ["train"])


def test_started_tasks_outside_the_specification_are_listed(sweep: SweepFolder) -> None:
    write_ended_task(sweep, _load_tasks(sweep)[1], "failed")
    sweep.specification.write_text("template: {train: 'echo {a}'}\n---\na: [3, 4]\n", encoding="utf-8")
    listed = [(task.name, task.state) for task in list_tasks(sweep)]
    assert listed == [("A_3", "queued"), ("A_4", "queued"), ("A_2", "failed")]


def test_results_of_other_values_keep_their_folder(sweep: SweepFolder) -> None:
    for task in _load_tasks(sweep):
        write_ended_task(sweep, task)
    late = plan_tasks(_make_specification(default=5)).tasks[0]  # planned before the others started
    assert _run(sweep, late)[0].state == "success"
    current_tasks = _load_tasks(sweep, _make_specification(default=5))
    assert [task.state for task in current_tasks] == ["success", "queued", "queued"]
    assert len({task.name.casefold() for task in [*load_started_tasks(sweep), *current_tasks]}) == 6
    assert read_yaml(sweep.task_folder("A_1").param)["b"] == 0


@pytest.mark.parametrize("values", [("[A]", "[a, A]"), ("[1234567]", "[1234568, 1234567]")])
def test_values_with_equal_spelling_can_be_added_to_a_sweep(sweep: SweepFolder, values: tuple[str, str]) -> None:
    write_ended_task(sweep, _load_tasks(sweep, _make_specification(values[0]))[0])
    assert [task.state for task in _load_tasks(sweep, _make_specification(values[1]))] == ["queued", "success"]


_VALUES = st.one_of(st.text(max_size=30), st.booleans(), st.integers(), st.floats(allow_nan=False))


@given(st.lists(_VALUES, min_size=1, max_size=3))
@example(["\x85"])
@settings(deadline=None, max_examples=50)
def test_task_with_any_values_is_recognized_again(
    tmp_path_factory: pytest.TempPathFactory, values: list[object]
) -> None:
    sweep = SweepFolder(tmp_path_factory.mktemp("sweep"))
    task = Task("task", {f"v{n}": value for n, value in enumerate(values)}, ("t",))
    write_ended_task(sweep, task)
    assert [current.key for current in load_started_tasks(sweep)] == [task.key]


def test_task_with_a_deleted_folder_runs_again(sweep: SweepFolder) -> None:
    for task in _load_tasks(sweep)[:2]:
        write_ended_task(sweep, task)
    for file in sweep.task_folder("A_2").path.iterdir():
        file.unlink()
    sweep.task_folder("A_2").path.rmdir()
    assert [task.state for task in _load_tasks(sweep)] == ["success", "queued", "queued"]


def test_task_of_a_dead_driver_is_locked_until_its_processes_end(sweep: SweepFolder) -> None:
    task = write_ended_task(sweep, _load_tasks(sweep)[0], "running")
    with file_lock(sweep.task_folder("A_1").lock):
        assert _load_tasks(sweep)[0].state == "running"
        assert _run(sweep, task) == (replace(task, state="running"), False)
    current = _load_tasks(sweep)[0]
    assert (current.state, current.start_count) == ("queued", 1) and "died" in str(current.message)
    assert _run(sweep, task)[0].state == "success"


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"state": "lost"}', '{"runs": {"train": 3}}'])
def test_unreadable_record_loses_no_result(sweep: SweepFolder, content: str) -> None:
    write_ended_task(sweep, _load_tasks(sweep)[0])
    sweep.task_folder("A_1").record_file.write_text(content, encoding="utf-8")
    assert _load_tasks(sweep)[0].state == "success"
    sweep.task_folder("A_1").stat.write_text("train: [finished]\n1: {}\n", encoding="utf-8")
    assert _load_tasks(sweep)[0].remaining_commands == ["train", "test"]
    assert _run(sweep, _load_tasks(sweep)[0])[0].state == "success"


@pytest.mark.parametrize("name", ["param", "task.json"])
@pytest.mark.parametrize("content", [None, "", "{cut"])
def test_missing_task_files_are_an_error_before_commands_run_again(
    sweep: SweepFolder, name: str, content: str | None
) -> None:
    folder = sweep.task_folder("A_1")
    _run(sweep, _load_tasks(sweep)[0], _FAILING_PROGRAM)
    write_finished_run(folder, 0.5)
    require_intact_records(folder)
    _load_tasks(sweep)[0].with_commands_reset(["train", "test"]).reset_record(folder, UsageError("busy"))
    require_intact_records(folder)  # a reset record is not a lost one
    (folder.path / name).unlink()
    if content is not None:
        (folder.path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=re.escape(str(folder.path / name))):
        require_intact_records(folder)


def test_error_for_a_wrong_type_names_the_field(sweep: SweepFolder) -> None:
    folder = sweep.task_folder("A_1")
    _run(sweep, _load_tasks(sweep)[0], _FAILING_PROGRAM)
    write_finished_run(folder, 0.5)
    write_json(folder.record_file, {**read_json(folder.record_file), "finished": 5})
    with pytest.raises(DataError, match=r"task\.json is missing or damaged .*array.*int.*\$\.finished"):
        require_intact_records(folder)


def test_names_in_files_and_records_cannot_lead_outside_the_sweep_folder(sweep: SweepFolder) -> None:
    (sweep.path.parent / "victim").mkdir()
    values = [
        "..",
        "../victim",
        "/",
        "/etc",
        "C:\\x",
        "..\\victim",
        "\\\\host\\x",
        "",
        "nul",
        "a/../../victim/..",
    ]
    for value in [*values, str(sweep.path.parent / "victim" / "..")]:
        for key in ("a", "../../victim", "/victim", ".."):
            specification = Specification({"t": "echo"}, (Choice({key: [value]}),))
            for task in plan_tasks(specification).tasks:
                assert sweep.task_folder(task.name).path.resolve().parent == sweep.path.resolve()
                assert sweep.task_folder(task.with_unique_name().name).path.resolve().parent == sweep.path.resolve()
    task = write_ended_task(sweep, _load_tasks(sweep)[0])
    write_json(sweep.task_folder(task.name).record_file, {"name": "../victim", "runs": {"train": {"run": "../victim"}}})
    write_yaml(sweep.task_folder(task.name).param, {**task.values, "_name": "../victim", "_output": "../victim"})
    assert [current.name for current in load_started_tasks(sweep)] == [task.name]


def test_mlrunner_folder_is_read_from_param_and_stat(sweep: SweepFolder) -> None:
    for task, state in zip(_load_tasks(sweep), ("finished", "failed", "running"), strict=True):
        folder = sweep.task_folder(task.name)
        folder.path.mkdir()
        write_yaml(folder.param, {**task.values, "_name": task.name, "_output": "x", "_time": "y"})
        write_yaml(folder.stat, {"train": "finished", "test": state})
    states = [(task.state, task.remaining_commands) for task in _load_tasks(sweep)]
    assert states == [("success", []), ("failed", ["test"]), ("queued", ["test"])]


def test_record_of_an_earlier_version_without_commands_is_read(sweep: SweepFolder) -> None:
    task, *_ = _load_tasks(sweep)
    folder = sweep.task_folder(task.name)
    folder.path.mkdir()
    write_yaml(folder.param, {**task.values, "_scripts": {"train": "echo 1 0"}})
    write_yaml(folder.stat, {"train": "finished", "test": "failed"})
    write_json(folder.record_file, {"state": "failed", "starts": 2})
    loaded, *_ = _load_tasks(sweep)
    assert (loaded.name, loaded.state, loaded.remaining_commands, loaded.start_count) == (
        task.name,
        "failed",
        ["test"],
        2,
    )
