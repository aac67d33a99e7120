"""Contents of a specification file, and the errors for invalid ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmf_win.errors import UsageError
from mmf_win.sweeps.grid import find_equal_numbers, preset_specification_text
from mmf_win.sweeps.planning import plan_tasks
from mmf_win.sweeps.specification import Choice, find_surprising_readings, parse_specification, read_text, render_argv
from tests.worlds.small_sweeps import ROOT, make_specification

HEAD = "template: {train: 'echo {lr}'}\n"


def test_file_contains_a_header_and_choices() -> None:
    specification = make_specification(
        "template:\n  train: echo {lr}\n  test: echo\ndefault: {lr: 1}\nresource: [0, '1,2', cpu]\n"
        "---\n_title: both\n_cmd: test\nlr: [1, 2]\nflag: true\n---\nlr: 3\n"
    )
    assert specification.template == {"train": "echo {lr}", "test": "echo"}
    assert specification.resource == ("0", "1,2", "cpu")
    assert specification.choices == (Choice({"lr": [1, 2], "flag": [True]}, "both", ("test",)), Choice({"lr": [3]}))


WRONG = {
    "nothing": ("", "the first document"),
    "no template": ("a: 1\n", "unknown key 'a'"),
    "an empty template": ("template: {}\n---\na: 1", "at least one command"),
    "nothing to combine": (HEAD, "no values to combine"),
    "a tab": ("template:\n\ttrain: echo\n---\na: 1\n", "line 2"),
    "a tab, whose hint": ("template:\n\ttrain: echo\n---\na: 1\n", "indent YAML with spaces"),
    "a key twice": (HEAD + "---\nlr: 1\nlr: 2\n", "duplicate key 'lr'"),
    "an unknown command": (HEAD + "---\n_cmd: tset\nlr: 1\n", "tset"),
    "no value": (HEAD + "---\nlr: []\n", "lr has no value"),
    "a list for a choice": (HEAD + "---\n- 1\n", "document 2"),
    "one resource": (HEAD + "resource: 0\n---\nlr: 1\n", "'resource' must be a list"),
    "a resource that is no GPU": (HEAD + "resource: [0, banana]\n---\nlr: 1\n", "'banana' is not a GPU"),
    "a GPU and a fruit": (HEAD + "resource: ['0,banana']\n---\nlr: 1\n", "'0,banana' is not a GPU"),
    "a GPU below 0": (HEAD + "resource: [-1]\n---\nlr: 1\n", "'-1' is not a GPU"),
    "a truth for a GPU": (HEAD + "resource: [on]\n---\nlr: 1\n", "'resource'"),
    "a shell of its own": (HEAD + "shell: bash\n---\nlr: 1\n", "true or false"),
    "a search without trials": (HEAD + "search: {parameters: {lr: [1]}}\n", "'trials'"),
    "a search for nothing": (HEAD + "search: {trials: 3}\n", "'parameters'"),
    "a range of texts": (HEAD + "search: {trials: 3, parameters: {lr: {low: 1e-6, high: 1e-3}}}\n", "range of numbers"),
    "a date": (HEAD + "---\nlr: 2026-01-01\n", "not a text, number"),
    "nothing for a value": (HEAD + "---\nlr: [1, null]\n", "not a text, number"),
    "a list for a value": (HEAD + "---\nlr: [[1, 2]]\n", "not a text, number"),
    "a list of itself": (HEAD + "---\nlr: &a [*a]\n", ""),
    "a number without end": (HEAD + "---\nlr: " + "1" * 5000 + "\n", ""),
    "a path for a command": ("template: {a/b: echo}\n---\nlr: 1\n", "'a/b'"),
    "no command at all": (HEAD + "---\n_cmd: []\nlr: 1\n", "no command"),
    "a reserved name": (HEAD + "---\n_name: 1\n", "_name is set by mmfw"),
    "a reserved default": (HEAD + "default: {_output: x}\n---\nlr: 1\n", "_output is set by mmfw"),
    "a reserved key": (HEAD + "alias: {a: {x: {_time: 1}}}\n---\nlr: 1\n", "_time is set by mmfw"),
    "a key of earlier": (HEAD + "---\n_scripts: 1\n", "_scripts is set by mmfw"),
    "a search for a reserved one": (
        HEAD + "search: {trials: 3, parameters: {_time: {low: 1, high: 2}}}\n",
        "_time is set by mmfw",
    ),
    "no trials": (HEAD + "search: {trials: 0, parameters: {lr: [1]}}\n", "'trials'"),
    "half a trial": (HEAD + "search: {trials: 0.5, parameters: {lr: [1]}}\n", "'trials'"),
    "a metric without a name": (HEAD + "search: {trials: 1, metric: 3, parameters: {lr: [1]}}\n", "'metric'"),
    "a search by a test set": (
        HEAD + "search: {trials: 1, metric: test_seen_auroc, parameters: {lr: [1]}}\n",
        "test_seen_auroc is measured on a test set",
    ),
    "an unknown key of a search": (HEAD + "search: {trial: 3, parameters: {lr: [1]}}\n", "key 'trial'"),
    "a list of GPUs in a list": (HEAD + "resource: [[0, 1]]\n---\nlr: 1\n", "'resource'"),
    "an endless range": (
        HEAD + "search: {trials: 3, parameters: {lr: {low: 0.0, high: .inf}}}\n",
        "low must not be above high",
    ),
    "a step back": (HEAD + "search: {trials: 3, parameters: {lr: {low: 0, high: 9, step: -1}}}\n", "step must be"),
    "a text for a seed": (HEAD + "search: {trials: 3, seed: x, parameters: {lr: [1]}}\n", "'seed'"),
    "an unknown sampler": (
        HEAD + "search: {trials: 3, sampler: x, parameters: {lr: [1]}}\n",
        "invalid value 'x' for 'sampler' choose one of tpe, random",
    ),
    "a range upside down": (
        HEAD + "search: {trials: 3, parameters: {lr: {low: 2, high: 1}}}\n",
        "low must not be above high",
    ),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_error_in_a_file_names_the_file(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_specification(text, Path("my params.yaml"))
    assert "my params.yaml" in str(error.value) and message in f"{error.value} {error.value.hint}"


def test_error_for_a_binary_file_names_it(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"x\.yaml"):
        read_text(file)


@pytest.mark.parametrize("path", ["/data/[2024]/{best}.yaml", "one {lr}", "[x\x85y]", "[seed]", "C:\\[x]\\p.yaml"])
def test_path_argument_may_contain_placeholder_characters(path: str) -> None:
    specification = make_specification(preset_specification_text(path, [7], ["a[0].lr=1,2"], ["--data-dir", path]))
    task = plan_tasks(specification).tasks[0]
    arguments = render_argv(specification.template["train"], task.values)
    assert arguments == ["mmfw", "train", path, "--data-dir", path, "a[0].lr=1", "--seed", "7"]
    assert task.name == "Lr_1-Seed_7"


def test_surprising_yaml_values_are_found() -> None:
    text = "template: {t: 'echo {a} on 016'}\n---\na: [016, 12:30, on, No, 0x1F, 1_000, 0b11, -07]\n"
    assert find_surprising_readings(text) == {
        "016": 14,
        "12:30": 750,
        "on": True,
        "No": False,
        "0x1F": 31,
        "1_000": 1000,
        "0b11": 3,
        "-07": -7,
    }
    plain = "a: [0, 10, 08, 1e-5, 0.5, -1, '016', \"on\", true, False, y, one, GPU-0, 1.0e-3, 0.0_1x, 10.0.0.1]\n"
    assert find_surprising_readings(f"template: {{t: echo}}\n---\n{plain}") == {}


def test_equal_numbers_are_found_and_stay_distinct() -> None:
    text = "template: {t: 'echo {a} {b}'}\n"
    specification = make_specification(f"{text}---\na: [1e-5, 0.00001, 2, x, x, nan, nan]\nb: [1, true]\n")
    assert find_equal_numbers(specification) == {"a": ["1e-5", "1e-05"]}
    assert specification.choices[0].values["a"][:2] == ["1e-5", 1e-05]
    typed = make_specification(preset_specification_text("demo", [], ["lr=1e-5,0.00001,2", "batch_size=16,16.0"], []))
    assert find_equal_numbers(typed) == {"lr": ["1e-05", "1e-05"], "batch_size": ["16", "16.0"]}


def test_files_in_the_guide_are_valid() -> None:
    guide = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    texts = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    assert [len(plan_tasks(make_specification(text)).tasks) for text in texts] == [8, 0]
