"""Programs that a test wants from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def is_wine() -> bool:
    """Whether this is a Windows Python under Wine, where hardly any tool is to be had."""
    if sys.platform != "win32":
        return False
    import ctypes

    return hasattr(ctypes.windll.ntdll, "wine_get_version")


def requires_tool(*names: str, on_windows: bool = True) -> pytest.MarkDecorator:
    """Skip a test, saying so, where one of these programs is not installed; in CI that fails it.

    Args:
        names: of the programs.
        on_windows: False where Windows has no such program.
    """
    if sys.platform == "win32" and not on_windows:
        return pytest.mark.skip(reason=f"Windows has no {' or '.join(names)}")
    missing = [name for name in names if shutil.which(name) is None]
    where = " under Wine" if is_wine() else ""
    return pytest.mark.skipif(bool(missing), reason=f"not installed{where}: {', '.join(missing)}")


requires_console_events = pytest.mark.skipif(is_wine(), reason="Wine sends no console events")
"""For a test that sends Ctrl+Break on Windows."""


def call(*command: str | Path, cwd: Path) -> None:
    """Run a program that must succeed."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}  # unzip spoils letters that the locale lacks
    subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
