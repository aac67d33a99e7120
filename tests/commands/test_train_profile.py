"""Mistakes on the command line of ``mmfw train --profile``, and the removed ``mmfw profile``."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.cli import COMMANDS, REPLACED_COMMANDS
from tests.worlds.tools import MmfwRunner

ALONE = "cannot be combined with --profile"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mmbt_grid", "--profile", "5"], "5 is not in the range x>=6"),
        (["mmbt_grid", "--profile", "-1"], "-1 is not in the range"),
        (["mmbt_grid", "--profile", "many"], "'many' is not a whole number"),
        (["--profile", "30"], "missing PRESET or --resume"),
        (["nosuch", "--profile", "30"], "nosuch"),
        (["--profile", "30", "--resume", "nosuch"], "no run named nosuch"),
        (["mmbt_grid", "--profile", "30", "--resume", "last"], "no run of preset mmbt_grid"),
        (["--profile", "30", "--resume", __file__], "--profile starts at update 0, not at a checkpoint"),
        (["mmbt_grid", "--profile", "30", "--name", "mine"], f"--name {ALONE}"),
        (["mmbt_grid", "--profile", "30", "--track", "mlflow"], f"--track {ALONE}"),
        (["mmbt_grid", "--profile", "30", "--track-page"], f"--track-page {ALONE}"),
        (["mmbt_grid", "--profile", "30", "--nproc", "2"], f"--nproc {ALONE}"),
        (["mmbt_grid", "--profile", "30", "--nnodes", "2"], f"--nnodes {ALONE}"),
        (["mmbt_grid", "--profile", "30", "--keep-checkpoints", "2"], f"--keep-checkpoints {ALONE}"),
        (["mmbt_grid", "--profile", "30", "--dry-run"], f"--dry-run {ALONE}"),
        (
            ["mmbt_grid", "--profile", "30", "--batch-size", "2", "training.batch_size=4"],
            "--batch-size and training.batch_size=4",
        ),
    ],
)
def test_mistake_is_reported_and_nothing_is_written(
    user_dir: Path, mmfw: MmfwRunner, arguments: list[str], message: str
) -> None:
    mmfw("train", *arguments, "--save-dir", user_dir / "save", code=2)
    assert message in mmfw.err
    assert list(user_dir.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["mmbt_grid", "--updates", "30", "-o", "out"], ["--help"], ["a=b"]])
def test_removed_command_names_its_replacement(mmfw: MmfwRunner, arguments: list[str]) -> None:
    message = mmfw("profile", *arguments, code=2)
    assert message.strip() == "error: `mmfw profile` was replaced by `mmfw train --profile N`"
    assert mmfw.out == ""


def test_removed_commands_are_not_listed(mmfw: MmfwRunner) -> None:
    assert REPLACED_COMMANDS and not REPLACED_COMMANDS.keys() & COMMANDS.keys()
    names = [line.split()[0] for line in mmfw("--help").splitlines() if line.startswith("  ") and line.split()]
    assert not REPLACED_COMMANDS.keys() & set(names)
