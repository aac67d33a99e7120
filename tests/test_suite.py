"""Behaviour of the test suite: signals, imports, collected messages and shared servers."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ALLOWED_SKIP_REASONS, SKIP_REASONS_ALLOWED_WITHOUT_TORCH
from tests.worlds import message_log
from tests.worlds.mlflow_server import kill_when_unused, requires_mlflow_server
from tests.worlds.tools import requires_tool

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def drop_message_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep each nested pytest from rewriting the file to which this run adds its messages."""
    monkeypatch.delenv(message_log.VARIABLE, raising=False)


# Two tests: one interrupts itself, the other gives a signal to itself and to a child.
_SIGNAL_TESTS_CODE = """
import os, pytest, signal, subprocess, sys

def test_interrupt():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([signal.SIGUSR1], 0)  # handles a pending signal

@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signal(number):
    os.kill(os.getpid(), number)
    child = subprocess.run([sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)})"])
    assert child.returncode == -number
"""


@requires_tool("sh", exists_on_windows=False)
def test_tests_receive_signals_that_were_ignored_at_start(tmp_path: Path) -> None:
    """Scripts start background jobs with SIGINT ignored, and ``nohup`` starts a program with SIGHUP ignored."""
    (tmp_path / "test_signals.py").write_text(_SIGNAL_TESTS_CODE, "ascii")
    pytest_arguments = ("-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", os.devnull)
    command = [sys.executable, "-m", "pytest", *pytest_arguments, f"--rootdir={tmp_path}", str(tmp_path)]
    process = subprocess.run(
        ["sh", "-c", 'trap "" INT TERM HUP; exec "$@"', "sh", *command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert process.returncode == 0 and "3 passed" in process.stdout, process.stdout


_LARGE_PACKAGES = {"clearml", "pandas", "ray", "torch", "wandb"}
_REPORTER_CODE = f"""
import sys

def pytest_sessionfinish():
    print("imported:", *({_LARGE_PACKAGES!r} & sys.modules.keys()))
"""


@pytest.mark.wide
def test_collection_imports_no_large_package(tmp_path: Path) -> None:
    """A run of a few tests does not have to wait for packages that these tests do not use."""
    (tmp_path / "reporter.py").write_text(_REPORTER_CODE, "ascii")
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "reporter"]
    process = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert process.returncode == 0, process.stdout
    assert re.findall("^imported:(.*)$", process.stdout, re.MULTILINE) == [""]


_MESSAGE_TEST_CODE = """
import pytest

@pytest.mark.parametrize("name", ["one", "other"])
def test_error(mmfw, tmp_path, name):
    (tmp_path / name).touch()
    for _ in range(2):
        mmfw("doctor", "--report", tmp_path / name, code=2)
"""


def test_messages_are_collected_once_without_temporary_folders(tmp_path: Path) -> None:
    (tmp_path / "test_messages.py").write_text(_MESSAGE_TEST_CODE, "ascii")
    options = ("-q", "-n2", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", os.devnull)
    message_file = tmp_path / "messages.txt"
    process = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "MMFW_TEST_MESSAGES": str(message_file)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert process.returncode == 0, process.stdout
    messages = message_file.read_text("utf-8").splitlines()
    assert [message for message in messages if message.startswith("error:")] == [
        "error: TMP/one: already exists",
        "error: TMP/other: already exists",
    ]
    assert len(messages) == len(set(messages)) > 2 and all(m.startswith(("error:", "hint:")) for m in messages)


_USER_CODE = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_SH)
    print("locked", flush=True)
    sys.stdin.read()
"""


@requires_mlflow_server
def test_shared_server_ends_when_its_last_user_is_killed(tmp_path: Path) -> None:
    users, address = tmp_path / "users", tmp_path / "address"
    address.touch()
    with (
        subprocess.Popen(["sleep", "60"], start_new_session=True) as server,
        subprocess.Popen(
            [sys.executable, "-c", _USER_CODE, users], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as user,
    ):
        assert user.stdout is not None and user.stdout.readline() == b"locked\n"
        kill_when_unused(server, users, address)
        user.kill()
        assert server.wait(timeout=30) == -signal.SIGKILL
    assert not address.exists()


def _iter_skip_reasons(path: Path) -> Iterator[str]:
    """Yield the strings in the calls of a file that skip tests."""
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(("skip", "skipif", "importorskip")):
            for node in ast.walk(call):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


@pytest.mark.parametrize("allowed_reason", [*ALLOWED_SKIP_REASONS, *SKIP_REASONS_ALLOWED_WITHOUT_TORCH])
def test_allowed_skip_reason_is_the_reason_of_a_test(allowed_reason: str) -> None:
    paths = (ROOT / "tests").rglob("*.py")
    assert any(allowed_reason in reason for path in paths for reason in _iter_skip_reasons(path))
