"""Shell completion in a real bash."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mmf_win.cli import COMMANDS
from tests.worlds import report_world
from tests.worlds.tools import requires_tool

pytestmark = requires_tool("bash", exists_on_windows=False)

_ASK = """\
. ./completion.sh
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_mmfw_completion mmfw
printf '%s\\n' "${COMPREPLY[@]}"
"""
TIME = "2026-01-01T00-00-00"
_HEAVY = {"torch", "mmf", "transformers", "numpy", "pandas"}


class Shell:
    """Bash in an empty folder, with mmfw installed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._import_log = folder, folder / "imports.txt"
        program = folder / "bin" / "mmfw"
        program.parent.mkdir()
        arguments = (sys.executable, "-X", "importtime", "-m", "mmf_win")
        program.write_text(
            f'#!/bin/sh\nexec {shlex.join(arguments)} "$@" 2>{shlex.quote(str(self._import_log))}\n', encoding="utf-8"
        )
        program.chmod(0o755)
        self._bash("_MMFW_COMPLETE=bash_source mmfw > completion.sh")

    def completes(self, *arguments: str, **variables: str) -> list[str]:
        """Return the completions of the last word; check the imports and that there is no other output."""
        completed = self._bash(_ASK, "mmfw", *map(shlex.quote, arguments), **variables)  # quoted, as they are typed
        log_lines = self._import_log.read_text(encoding="utf-8").splitlines()
        assert [line for line in log_lines if not line.startswith("import time:")] == []
        assert {line.split("|")[-1].strip() for line in log_lines}.isdisjoint(_HEAVY)
        assert completed.stderr == ""
        return completed.stdout.splitlines()

    def _bash(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        path = f"{self._folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "--norc", "-c", script, "bash", *arguments],
            cwd=self._folder,
            env={**os.environ, "PATH": path, **variables},
            capture_output=True,
            encoding="utf-8",
            check=True,
        )


@pytest.fixture
def shell(user_dir: Path) -> Shell:
    return Shell(user_dir)


@pytest.fixture
def world(user_dir: Path) -> report_world.ReportWorld:
    """Make a dataset and two runs; the second run is unreadable."""
    report_folders = report_world.make(user_dir, groups=2)
    report_folders.add_run("first")
    report_folders.add_run("second").request_file.write_text("{", encoding="utf-8")
    return report_folders


def test_commands_and_options_are_completed(shell: Shell) -> None:
    assert shell.completes("") == list(COMMANDS)
    assert shell.completes("re") == ["repair", "report"]
    assert shell.completes("train", "--res") == ["--resume"]
    assert shell.completes("runs", "com") == ["compare"]
    assert shell.completes("trian", "--") == ["--version", "--help"]


@pytest.mark.parametrize("command", ["train", "features status"])
def test_presets_are_completed(shell: Shell, command: str) -> None:
    assert shell.completes(*command.split(), "vilb") == ["vilbert", "vilbert_cc"]


@pytest.mark.parametrize("command", ["predict", "report", "runs show", "runs compare first"])
def test_runs_in_the_given_save_dir_are_completed(shell: Shell, world: report_world.ReportWorld, command: str) -> None:
    completions = shell.completes(*command.split(), "--save-dir", str(world.save), "sec")
    assert completions == ["second", f"second/{TIME}"]


def test_runs_in_the_save_dir_of_the_environment_are_completed(shell: Shell, world: report_world.ReportWorld) -> None:
    completions = shell.completes("runs", "rm", f"first/{TIME}", "", MMF_SAVE_DIR=str(world.save))
    assert set(completions) == {"first", "second", f"first/{TIME}", f"second/{TIME}"}
    completions = shell.completes("train", "--resume", "", MMF_SAVE_DIR=str(world.save))
    assert {"best", "last", "first"} <= set(completions)


def test_runs_and_presets_are_completed_for_verify(shell: Shell, world: report_world.ReportWorld) -> None:
    completions = shell.completes("verify", "--save-dir", str(world.save), "")
    assert {"dataset", "mmf", "vilbert", "first", "second"} <= set(completions)


def test_splits_are_completed(shell: Shell, world: report_world.ReportWorld) -> None:
    data_dir = str(world.dataset.data_dir)
    assert shell.completes("predict", "--data-dir", data_dir, "--split", "") == [report_world.SPLIT]
    assert shell.completes("check-submission", "--split", "t", MMF_DATA_DIR=data_dir) == [report_world.SPLIT]
