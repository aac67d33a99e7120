"""The suite itself: what a run of pytest does before its tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds.mlflow_server import kill_when_unused, requires_mlflow_server
from tests.worlds.tools import requires_tool

ROOT = Path(__file__).parents[1]


# Two tests: one interrupts itself, the other gives a signal to itself and to a child.
_SIGNALLED = """
import os, pytest, signal, subprocess, sys

def test_an_interrupt():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([signal.SIGUSR1], 0)  # where a pending signal is looked at

@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_another_signal(number):
    os.kill(os.getpid(), number)
    child = subprocess.run([sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)})"])
    assert child.returncode == -number
"""


@requires_tool("sh", exists_on_windows=False)
def test_a_run_started_with_signals_ignored_lets_tests_get_them(tmp_path: Path) -> None:
    """Start a process as a background job of a script or with ``nohup``, which survives SIGHUP."""
    (tmp_path / "test_signals.py").write_text(_SIGNALLED, "ascii")
    pytest_words = ("-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", os.devnull)
    command = [sys.executable, "-m", "pytest", *pytest_words, f"--rootdir={tmp_path}", str(tmp_path)]
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT TERM HUP; exec "$@"', "sh", *command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout


_LARGE = {"clearml", "pandas", "ray", "torch", "wandb"}
_REPORTER = f"""
import sys

def pytest_sessionfinish():
    print("imported:", *({_LARGE!r} & sys.modules.keys()))
"""


@pytest.mark.wide
def test_collecting_the_suite_imports_no_large_package(tmp_path: Path) -> None:
    """Whoever runs a few tests does not wait for packages that they do not use."""
    (tmp_path / "reporter.py").write_text(_REPORTER, "ascii")
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "reporter"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.findall("^imported:(.*)$", done.stdout, re.MULTILINE) == [""]


_PRINTING = """
import pytest

@pytest.mark.parametrize("name", ["one", "other"])
def test_a_mistake(mmfw, tmp_path, name):
    (tmp_path / name).touch()
    for _ in range(2):
        mmfw("doctor", "--report", tmp_path / name, code=2)
"""


def test_the_messages_of_commands_are_collected_once_and_without_temporary_folders(tmp_path: Path) -> None:
    (tmp_path / "test_messages.py").write_text(_PRINTING, "ascii")
    options = ("-q", "-n2", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", os.devnull)
    collected = tmp_path / "messages.txt"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "MMFW_TEST_MESSAGES": str(collected)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout
    messages = collected.read_text("utf-8").splitlines()
    assert [message for message in messages if message.startswith("error:")] == [
        "error: TMP/one: already exists",
        "error: TMP/other: already exists",
    ]
    assert len(messages) == len(set(messages)) > 2 and all(m.startswith(("error:", "hint:")) for m in messages)


_USER = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_SH)
    print("locked", flush=True)
    sys.stdin.read()
"""


@requires_mlflow_server
def test_a_shared_server_ends_with_the_last_of_its_users_even_if_it_is_killed(tmp_path: Path) -> None:
    users, address = tmp_path / "users", tmp_path / "address"
    address.touch()
    with (
        subprocess.Popen(["sleep", "60"], start_new_session=True) as server,
        subprocess.Popen([sys.executable, "-c", _USER, users], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user,
    ):
        assert user.stdout is not None and user.stdout.readline() == b"locked\n"
        kill_when_unused(server, users, address)
        user.kill()
        assert server.wait(timeout=30) == -signal.SIGKILL
    assert not address.exists()
