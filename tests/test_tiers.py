"""Coverage of the default tests: each file, command, model and guarantee has a test that is not wide."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from mmf_win.cli import COMMANDS

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "tests").rglob("test_*.py"))
# Reasons why all tests of a file are wide.
WIDE_FILES = {
    "endtoend/test_recorded_results.py": "other tests train the same models; compares last digits",
    "endtoend/test_tracking.py": "needs the extra mlflow",
    "endtoend/test_slurm.py": "tests/test_slurm_job.py runs the same job with a stub of mmfw",
    "endtoend/test_wheel_workflow.py": "runs with `scripts/test.py --windows`, too",
    "results/test_report_browser.py": "needs playwright and a Chromium",
    "sweeps/test_ray_backend.py": "needs the extra ray",
    "test_site.py": "needs the extra docs, playwright and a Chromium",
    "tracking/test_clearml.py": "needs the extra clearml",
    "tracking/test_datasets.py": "needs the extra clearml",
    "tracking/test_destinations.py": "needs the extras mlflow, clearml and wandb",
    "tracking/test_mlflow.py": "needs the extra mlflow and its server",
    "tracking/test_run_ids.py": "needs the extras mlflow, clearml and wandb",
    "tracking/test_wandb.py": "needs the extra wandb",
}
_RUNNERS = ("mmfw", "mmfw.json", "tool", "tool.run_for_exit_code")
# Default test of each guarantee in docs/reliability.md: beginnings of table rows and of items of "Checkpoints".
GUARANTEES = {
    "Ctrl+C, `kill`, a closed terminal": "test_first_signal_saves_checkpoint_and_run_resumes_from_it",
    "the file that `MMFW_STOP_FILE` names": "test_stop_file_interrupts_a_command",
    "a signal is sent to every process": "test_signal_to_all_training_processes_saves_checkpoint",
    "several of these signals": "test_repeated_signal_is_one_stop_request",
    "a signal that was ignored": "test_ctrl_c_ignored_at_start_does_not_stop_training",
    "a second Ctrl+C": "test_hanging_worker_and_its_loader_workers_are_killed",
    "no progress for 30 seconds": "test_second_ctrl_c_or_timeout_kills_the_process_tree",
    "`mmfw` itself is killed with -9": "test_worker_saves_checkpoint_and_exits_after_parent_is_killed",
    "the worker, or one of several processes": "test_other_processes_end_after_one_is_killed_and_run_resumes",
    "the worker has finished but does not exit": "test_child_that_wrote_its_outcome_but_does_not_exit_is_killed",
    "the disk is too full for a checkpoint": "test_full_disk_stops_the_run_and_leaves_its_last_checkpoint_intact",
    "a save is one write": "test_each_save_is_written_once_and_old_checkpoints_are_removed",
    "at any moment each name is the complete old file": (
        "test_run_killed_during_a_save_resumes_from_the_previous_save"
    ),
    "free space is checked before each save": "test_too_little_space_is_reported_before_writing",
    "old `models/model_N": "test_each_save_is_written_once_and_old_checkpoints_are_removed",
    "the weights": "test_run_stopped_within_and_at_end_of_epoch_ends_with_same_weights",
    "the best score": "test_resumed_run_remembers_its_best_checkpoint",
    "the settings": "test_resumed_run_keeps_its_request",
    "the state of the random generators": "test_run_stopped_within_and_at_end_of_epoch_ends_with_same_weights",
    "the order of the rows": "test_row_order_continues_within_an_epoch_with_other_batch_sizes",
    "CUDA ran out in a forward or backward pass": "test_micro_batch_is_reduced_until_it_fits",
    "CUDA ran out in a validation": "test_out_of_memory_in_validation_reduces_only_evaluation_batch",
    "CUDA ran out in `mmfw predict`": "test_out_of_memory_in_validation_reduces_only_evaluation_batch",
    "the computer's memory ran out": "test_killed_data_loader_worker_leads_to_fewer_workers",
    "too many files were open": "test_each_error_has_its_outcome",
    "a disk, a quota or the size of a file": "test_disk_that_fills_up_while_writing_leaves_only_the_old_file",
    "CUDA ran out before the first batch": "test_reduced_limit_depends_on_the_outcome",
    "a loss or a weight that is not a number": "test_nan_loss_stops_run_before_it_reaches_weights",
    "anything else": "test_each_outcome_has_its_exit_code_and_names_the_log",
}


class _TestFile(ast.NodeVisitor):
    """Tests of a file, by their tier.

    Attributes:
        default: Names of the tests that run by default, each with the commands that it runs.
        wide: Names of the other tests.
    """

    def __init__(self, path: Path) -> None:
        self.default: dict[str, set[str]] = {}
        self.wide: set[str] = set()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        marks = [
            ast.unparse(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        ]
        self._all_wide = any("pytest.mark.wide" in mark for mark in marks)
        self.visit(tree)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Sort a test by its marks; a test with some wide parameters runs by default with the other parameters."""
        if not node.name.startswith("test_"):
            return
        if self._all_wide or "pytest.mark.wide" in map(ast.unparse, node.decorator_list):
            self.wide.add(node.name)
        else:
            self.default[node.name] = set(_iter_commands(node))


def _iter_commands(test: ast.FunctionDef) -> Iterator[str]:
    """Yield the commands that a test runs by a fixture, such as ``train`` of ``mmfw("train", run)``."""
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _RUNNERS:
            strings = [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
            yield from (string.split()[0] for string in strings if isinstance(string, str))


@cache
def _test_files() -> dict[str, _TestFile]:
    return {path.relative_to(ROOT / "tests").as_posix(): _TestFile(path) for path in FILES}


def test_file_without_default_tests_is_listed_with_a_reason() -> None:
    assert {name for name, tests in _test_files().items() if tests.wide and not tests.default} == set(WIDE_FILES)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_has_a_default_test(command: str) -> None:
    folders = ("commands/", "endtoend/", "demo/", "doctor/")
    files = [tests for name, tests in _test_files().items() if name.startswith(folders)]
    assert any(command in commands for tests in files for commands in tests.default.values())


def _iter_parameters(function: pytest.Function) -> Iterator[object]:
    for mark in function.pytestmark:  # type: ignore[attr-defined]
        if mark.name == "parametrize":
            yield from mark.args[1]


@pytest.mark.torch
def test_all_models_of_mmf_are_checked_by_default() -> None:
    from tests.endtoend.test_checking import test_models_of_mmf_have_no_problems
    from tests.worlds import tiny_mmf

    assert set(_iter_parameters(test_models_of_mmf_have_no_problems)) == set(tiny_mmf.recipes())
    assert "wide" not in {mark.name for mark in test_models_of_mmf_have_no_problems.pytestmark}


def _documented_guarantees() -> Iterator[str]:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    for section in page.split("\n## ")[1:]:
        if section.startswith(("How a run ends", "Out of memory")):
            yield from re.findall(r"^\| (?!-|what happen)([^|]+?) \|", section, re.MULTILINE)
        elif section.startswith(("Checkpoints", "What a resume")):
            items = section.partition("Not restored")[0]
            yield from (" ".join(item.split()) for item in re.findall(r"^- (.+?)[;.,:]", items, re.M | re.S))


def test_guarantees_have_a_default_test() -> None:
    default = {name for tests in _test_files().values() for name in tests.default}
    assert {guarantee: test for guarantee, test in GUARANTEES.items() if test not in default} == {}
    guarantees = list(_documented_guarantees())
    assert [guarantee for guarantee in guarantees if not guarantee.startswith(tuple(GUARANTEES))] == []
    assert [
        beginning for beginning in GUARANTEES if not any(guarantee.startswith(beginning) for guarantee in guarantees)
    ] == []
