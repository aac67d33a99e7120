"""Selection of tests by ``scripts/test.py``, and its end after Ctrl+C; environments are fake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.worlds.tools import load_script

SCRIPTS = Path(__file__).parents[1] / "scripts"
_REPORT_AFTER_INTERRUPT_CODE = """
import signal, time
try:
    print("up", flush=True)
    signal.pause()
except KeyboardInterrupt:
    time.sleep(1)  # longer than subprocess.run waits
    print("report")
"""
_RUN_PROGRAM_CODE = """
import signal, sys
from _venv import Venv
signal.signal(signal.SIGINT, signal.default_int_handler)
Venv.program_path = lambda self, name: sys.executable
Venv("unused", []).run_until_exit("python", sys.argv[1])
"""


@pytest.fixture
def test_py() -> ModuleType:
    """Return ``scripts/test.py`` as a module."""
    return load_script("test")


@pytest.mark.parametrize(
    "arguments",
    ["--windows --lowest", "--no-torch --lowest", "--no-torch --mmf github", "--setup-only -x", "--only ruff -x"],
)
def test_conflicting_options_are_refused(test_py: ModuleType, arguments: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        test_py.main(arguments.split())


@pytest.mark.parametrize(
    ("arguments", "marks"),
    [
        ("", "(not wide)"),
        ("-m torch", "(not wide) and (torch)"),
        ("--no-torch", "(not torch and not gpu) and (not wide)"),
        ("--all -m torch", "(torch)"),
        ("--all", None),
    ],
)
def test_tier_and_marks_select_tests_in_fake_environment(
    test_py: ModuleType, monkeypatch: pytest.MonkeyPatch, arguments: str, marks: str | None
) -> None:
    commands: list[tuple[str, ...]] = []

    class FakeVenv:
        path = Path(".venv-test")

        def __init__(self, *_: object, **__: object) -> None: ...

        def ensure_installed(self) -> None: ...

        def stop(self) -> None: ...

        def run(self, *_: str, **__: object) -> subprocess.CompletedProcess[str]:
            return subprocess.CompletedProcess("", 0, "")

        def run_until_exit(self, *command: str) -> int:
            commands.append(command)
            return 0

    monkeypatch.setattr(test_py, "Venv", FakeVenv)
    monkeypatch.setattr(test_py.shutil, "which", lambda _: None)
    monkeypatch.setattr(test_py.signal, "signal", lambda *_: None)
    assert test_py.main([*arguments.split(), "--only", "pytest"]) == 0
    [command] = commands
    passed_marks = command[command.index("-m", 2) + 1] if "-m" in command[2:] else None
    assert passed_marks == marks


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send a signal to a process group")
def test_program_finishes_its_report_after_ctrl_c(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_REPORT_AFTER_INTERRUPT_CODE, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-c", _RUN_PROGRAM_CODE, str(program)],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    ) as script:
        assert script.stdout is not None and script.stdout.readline() == "up\n"
        os.killpg(script.pid, signal.SIGINT)  # as a terminal does
        output, _ = script.communicate(timeout=60)
    assert output == "report\n"
