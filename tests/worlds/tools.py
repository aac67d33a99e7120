"""Programs that a test wants from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def requires_tool(*names: str) -> pytest.MarkDecorator:
    """Skip a test, saying so, where one of these programs is not installed; in CI that fails it."""
    missing = [name for name in names if shutil.which(name) is None]
    where = " on Windows" if sys.platform == "win32" else ""
    return pytest.mark.skipif(bool(missing), reason=f"not installed{where}: {', '.join(missing)}")


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
