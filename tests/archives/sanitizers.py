"""Builds the C sources with sanitizers, apart from Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_NATIVE = Path(__file__).parents[2] / "mmf_win" / "archives" / "native"


def run_under_sanitizers(extension: str, folder: Path) -> str:
    """What the extension's ``check.c`` prints, built with sanitizers that end it at the first mistake."""
    compiler = next((name for name in ("gcc", "clang") if shutil.which(name)), None)
    if compiler is None or os.name == "nt":
        pytest.skip("not installed" + (" on Windows" if os.name == "nt" else "") + ": gcc or clang")
    sources = [str(path) for path in (_NATIVE / extension).glob("*.c") if path.name != "module.c"]
    build = [compiler, "-std=c99", "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    build += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    program = folder / "check"
    subprocess.run([*build, *sources, "-o", str(program)], check=True)
    return subprocess.run([str(program)], check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
