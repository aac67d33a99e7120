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
def timeout_command(stop_timeout: float) -> float:
    """Return the stop timeout of a run in this command."""
    return stop_timeout


def read_timeout(*arguments: str) -> float:
    seconds: float = timeout_command.main(list(arguments), standalone_mode=False)
    return seconds


def test_stop_timeout_is_from_the_option_or_variable_or_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_timeout() == CommandOptions().stop_timeout == TaskRunner.stop_timeout == 30
    assert read_timeout("--stop-timeout", "2.5") == 2.5
    assert read_timeout() == 30, "the option must apply to one command only"
    monkeypatch.setenv("MMFW_STOP_TIMEOUT", "60")
    assert read_timeout("--stop-timeout", "2.5") == 2.5
    assert read_timeout() == 60


@pytest.mark.parametrize("value", ["0", "-1", "soon", "inf", "nan"])
def test_invalid_stop_timeout_is_rejected(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    with pytest.raises(click.BadParameter) as error:
        read_timeout("--stop-timeout", value)
    assert "--stop-timeout" in error.value.format_message()
    monkeypatch.setenv("MMFW_STOP_TIMEOUT", value)
    with pytest.raises(click.BadParameter) as error:
        read_timeout()
    assert "MMFW_STOP_TIMEOUT" in error.value.format_message()


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\nanother line\n", "\r\nanother line\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_password_in_a_file_ends_only_at_the_end_of_the_first_line(tmp_path: Path, start: str, end: str) -> None:
    passwords = []

    @click.command()
    @options.password_options
    def command(ask: Callable[[], str]) -> None:
        passwords.append(ask())

    password = "a b\x85c\u2028d\x0ce\rf "
    file = tmp_path / "secret.txt"
    file.write_bytes(f"{start}{password}{end}".encode())
    command.main(["--password-file", str(file)], standalone_mode=False)
    assert passwords == [password]
