"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest

from mmf_win.commands import options
from mmf_win.runs.request import CommandOptions
from mmf_win.sweeps.task_runner import TaskRunner


@click.command()
@options.stop_timeout
def patience(stop_timeout: float) -> float:
    """What a run in this command would wait for."""
    return stop_timeout


def waits(*words: str) -> float:
    seconds: float = patience.main(list(words), standalone_mode=False)
    return seconds


def test_the_stop_timeout_is_an_option_then_a_variable_then_30_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert waits() == CommandOptions().stop_timeout == TaskRunner.stop_timeout == 30
    assert waits("--stop-timeout", "2.5") == 2.5
    assert waits() == 30, "it holds for one command"
    monkeypatch.setenv("MMFW_STOP_TIMEOUT", "60")
    assert waits("--stop-timeout", "2.5") == 2.5
    assert waits() == 60


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "inf", "nan"])
def test_a_stop_timeout_that_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    with pytest.raises(click.BadParameter) as error:
        waits("--stop-timeout", wrong)
    assert "--stop-timeout" in error.value.format_message()
    monkeypatch.setenv("MMFW_STOP_TIMEOUT", wrong)
    with pytest.raises(click.BadParameter) as error:
        waits()
    assert "MMFW_STOP_TIMEOUT" in error.value.format_message()


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\nanother line\n", "\r\nanother line\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_only_the_end_of_the_first_line_ends_a_password_of_a_file(
    tmp_path: Path, start: str, end: str
) -> None:
    answers = []

    @click.command()
    @options.password_options
    def command(ask: Callable[[], str]) -> None:
        answers.append(ask())

    password = "a b\x85c\u2028d\x0ce\rf "
    file = tmp_path / "secret.txt"
    file.write_bytes(f"{start}{password}{end}".encode())
    command.main(["--password-file", str(file)], standalone_mode=False)
    assert answers == [password]
