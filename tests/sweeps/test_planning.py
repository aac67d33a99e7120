"""Tasks of a specification, compared with mlrunner's."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmf_win.errors import UsageError
from mmf_win.paths import is_portable
from mmf_win.sweeps.folder import MAX_NAME_BYTES, SweepFolder, merge_tasks, read_yaml
from mmf_win.sweeps.planning import MAX_TASKS, list_tasks, plan_tasks
from mmf_win.sweeps.specification import render_argv, render_shell_line
from tests.worlds.small_sweeps import make_specification, write_ended_task

# Written for this test; uses all features of mlrunner 0.5.9.
EVERYTHING = """\
template:
  train: >
    echo train data-bin/{data} --save-dir {_output} --norm {norm} [moment] [early-stop]
    [batch_size] {lr}
  avg: echo avg {_output}/avg.pt {_name}
  test: >
    echo test "{weights: {beam}}" [dropout]
default:
  {data: iwslt14, norm: batch, moment: 0.1, early-stop: false, batch_size: 32, lr: 0.5, beam: 5, dropout: 0}
alias:
  schedule:
    slow: {lr: 1.0e-05, moment: 0.01}
    fast: {lr: 0.25, moment: 0.9}
resource: [cpu, cpu]
---
norm: [new, batch]
moment: [0.1, 0.05]
---
_title: stop
norm: batch
early-stop: [true, false]
---
_title: stop
_cmd: [train]
schedule: [slow, fast]
note: ["with a space", "a/path/name", "quote'd"]
---
{_cmd: test, batch_size: [16, 64], dropout: 0.30000000000000004, note: x}
"""


def test_choices_are_combined_in_file_order() -> None:
    planned = plan_tasks(
        make_specification("template: {t: 'echo {a} {b}'}\n---\na: [1, 2]\nb: [x, y]\n---\na: 1\nb: [y, z]\n")
    )
    assert [task.name for task in planned.tasks] == ["A_1-B_x", "A_1-B_y", "A_2-B_x", "A_2-B_y", "A_1-B_z"]


def test_repeated_combination_is_one_task_with_all_commands() -> None:
    head = "template: {train: 'echo {a}', test: 'echo {a}'}\ndefault: {a: 1}\n"
    planned = plan_tasks(
        make_specification(f"{head}---\na: 1\n_cmd: train\n---\n_cmd: test\na: 1\n---\na: 1\n_cmd: train\n")
    )
    assert [(task.name, task.commands) for task in planned.tasks] == [("A_1", ("train", "test"))]


def test_defaults_fill_values_that_an_alias_case_does_not_set() -> None:
    head = "template: {t: 'echo {b} {c}'}\ndefault: {c: 0}\nalias: {a: {x: {b: 1}, y: {b: 2, c: 3}}}\n"
    planned = plan_tasks(make_specification(f"{head}---\na: [x, y]\n"))
    assert [task.values for task in planned.tasks] == [{"b": 1, "c": 0}, {"b": 2, "c": 3}]


def test_unused_parameter_only_appears_in_the_folder_name() -> None:
    planned = plan_tasks(make_specification("template: {t: 'echo {a}'}\n---\na: 1\nnote: [x, y]\n"))
    assert planned.unused_parameters == ("note",)
    assert [task.name for task in planned.tasks] == ["A_1-Note_x", "A_1-Note_y"]


def test_values_with_equal_spelling_get_distinct_folders() -> None:
    specification = make_specification("template: {t: 'echo {a}'}\n---\na: [x/y, x_y, X_Y, 0.1234567, 0.12345674]\n")
    names = [task.name for task in merge_tasks(plan_tasks(specification).tasks, [])]
    assert len({name.casefold() for name in names}) == 5
    assert names[0] == "A_x_y" and names[1].startswith("A_x_y-")


def test_long_names_are_truncated_and_stay_distinct() -> None:
    long = "x/" * 3000
    text = f"template: {{t: 'echo {{a}} {{b}}'}}\n---\na: [{long}1, {long}2]\nb: [{long}, 'я{long}']\n"
    tasks = merge_tasks(plan_tasks(make_specification(text)).tasks, [])
    assert len({task.name for task in tasks}) == 4
    assert all(len(task.name.encode()) <= MAX_NAME_BYTES and is_portable(task.name) for task in tasks)
    assert all(task.name.startswith("A_") for task in tasks)


_VALUES = st.one_of(st.text(max_size=30), st.booleans(), st.integers(), st.floats(allow_nan=False))


@given(st.text(min_size=1, max_size=10), st.lists(_VALUES, min_size=1, max_size=5))
@example("..", ["../..", "..", "/etc", "C:\\x", "."])
@settings(deadline=None, max_examples=50)
def test_every_value_yields_a_portable_folder_and_a_single_word(name: str, values: list[Any]) -> None:
    from mmf_win.sweeps.specification import Choice, Specification

    specification = Specification({"t": "echo {a} [a-b]"}, (Choice({name: values, "a": values}),), {"a-b": "x y"})
    for task in plan_tasks(specification).tasks:
        assert is_portable(task.name)
        assert Path("sweep", task.name).resolve().parent == Path("sweep").resolve()
        assert render_argv("echo {a}", task.values) == ["echo", str(task.values["a"])]


WRONG = {
    "an unset parameter": ("template: {t: 'echo {b}'}\n---\na: 1\n", {}, "b has no value"),
    "braces and brackets": ("template: {t: 'echo {a} [a]'}\n---\na: 1\n", {}, "braces and in brackets"),
    "an open quote": ('template: {t: "echo \'x"}\n---\na: 1\n', {}, "quotation"),
    "an alias in a template": ("template: {t: 'echo {a}'}\nalias: {a: {x: {b: 1}}}\n---\na: x\n", {}, "is an alias"),
    "an unknown case": ("template: {t: echo}\nalias: {a: {x: {b: 1}}}\n---\na: y\n", {}, "no case y"),
    "an unknown title": ("template: {t: echo}\n---\na: 1\n_title: one\n", {"title": "two"}, "title two"),
    "an unknown command": ("template: {t: echo}\n---\na: 1\n", {"commands": ["u"]}, "unknown command u"),
}


@pytest.mark.parametrize(("text", "chosen", "message"), WRONG.values(), ids=WRONG)
def test_invalid_specification_is_rejected_before_anything_runs(
    text: str, chosen: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        plan_tasks(make_specification(text), **chosen)


def test_placeholders_are_filled_like_in_mlrunner() -> None:
    values = {"s": "a 'b' \"c\"", "yes": True, "no": False, "n": 1.5, "_output": "out/x"}
    assert render_argv("run [s] {s}/x [yes] [no] [n] --n={n} {_output}", values) == [
        *("run", "--s", "a 'b' \"c\"", "a 'b' \"c\"/x", "--yes", "--n", "1.5", "--n=1.5", "out/x")
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="another shell on Windows")
def test_values_are_quoted_in_a_shell_line() -> None:
    assert render_shell_line("echo {a} |\n  cat", {"a": "x'y $z"}) == "echo 'x'\"'\"'y $z' | cat"


def test_sample_is_reproducible_and_ordered() -> None:
    specification = make_specification("template: {t: 'echo {a}'}\n---\na: [1, 2, 3, 4, 5, 6, 7, 8]\n")
    first, again = (plan_tasks(specification, sample=3).tasks for _ in range(2))
    assert len(first) == 3 and first == again
    assert [task.values["a"] for task in first] == sorted(task.values["a"] for task in first)


@pytest.mark.parametrize("parameters", [12, 30], ids=["10^12", "10^30"])
def test_combinations_are_counted_before_tasks_are_built(parameters: int) -> None:
    names = [f"p{n}" for n in range(parameters)]
    listed = "".join(f"{name}: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n" for name in names)
    specification = make_specification(
        f"template: {{t: 'echo {' '.join(f'{{{name}}}' for name in names)}'}}\n---\n{listed}"
    )
    tasks = plan_tasks(specification, sample=5).tasks
    assert len({task.key for task in tasks}) == 5 and tasks == plan_tasks(specification, sample=5).tasks
    assert all([*task.values] == names for task in tasks)
    for sample in (None, MAX_TASKS + 1):
        with pytest.raises(UsageError, match=f"{sample or 10**parameters:,} combinations") as caught:
            plan_tasks(specification, sample=sample)
        assert "--sample" in str(caught.value.hint)


def test_same_combinations_are_drawn_as_by_earlier_versions() -> None:
    specification = make_specification(
        "template: {t: 'echo {a} {b} {c}'}\n---\na: [1, 2, 3]\nb: [x, y, z, w]\nc: [true, false]\n"
    )
    every = plan_tasks(specification).tasks
    product = [(a, b, c) for a in (1, 2, 3) for b in "xyzw" for c in (True, False)]
    assert [tuple(task.values.values()) for task in every] == product
    drawn = sorted(random.Random(0).sample(range(24), 5))
    assert [task.name for task in plan_tasks(specification, sample=5).tasks] == [every[n].name for n in drawn]


def test_only_started_tasks_of_an_oversized_grid_are_listed(tmp_path: Path) -> None:
    text = "template: {t: 'echo {a} {b}'}\n---\n" + "".join(f"{name}: {list(range(1000))}\n" for name in ("a", "b"))
    sweep = SweepFolder(tmp_path)
    sweep.specification.write_text(text, encoding="utf-8")
    tasks = [write_ended_task(sweep, task) for task in plan_tasks(make_specification(text), sample=2).tasks]
    assert [task.name for task in list_tasks(sweep)] == [task.name for task in tasks]


@pytest.mark.wide
@pytest.mark.skipif(sys.platform == "win32", reason="mlrunner needs /bin/bash, which Windows has not")
@pytest.mark.parametrize(
    ("shell", "chosen"),
    [(False, []), (True, []), (False, ["-t", "stop", "-c", "train"])],
    ids=["without a shell", "in a shell", "a title and a command"],
)
def test_mlrunner_runs_the_same_commands(tmp_path: Path, shell: bool, chosen: list[str]) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
        head = "shell: true\n" if shell and folder is ours else ""
        (folder / "params.yaml").write_text(head + EVERYTHING, encoding="utf-8")
    main = "from mlrunner.run import main; main()"
    subprocess.run([sys.executable, "-c", main, *chosen], cwd=theirs, check=True, stdout=subprocess.DEVNULL)
    root = str(Path(__file__).parents[2])
    run = [sys.executable, "-m", "mmf_win", "sweep", "run", "params.yaml", "-o", "output", *chosen]
    subprocess.run(run, cwd=ours, check=True, env={**os.environ, "PYTHONPATH": root}, capture_output=True)
    assert _read_results(ours / "output") == _read_results(theirs / "output")


def _read_results(output: Path) -> dict[str, Any]:
    """Return the task folders with the output of each command, its state and the parameters."""
    results = {}
    for folder in (file.parent for file in output.glob("*/param")):
        logs = {log.name.split(".")[1]: log.read_text(encoding="utf-8") for log in folder.glob("log.*")}
        param = {k: v for k, v in read_yaml(folder / "param").items() if k not in ("_scripts", "_time")}
        results[folder.name] = (logs, read_yaml(folder / "stat"), param)
    return results
