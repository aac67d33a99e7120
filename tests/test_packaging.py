"""What a user gets from the wheel."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_NEEDED = ("pip", "setuptools")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """The wheel, built from a copy: setuptools writes into the folder that it builds from."""
    if sys.platform == "win32" and not all(importlib.util.find_spec(name) for name in _NEEDED):
        pytest.skip("this Windows Python cannot build a wheel")
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("mmf_win", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", "out", "."]
    subprocess.run(build, cwd=source, check=True)
    (built,) = (source / "out").glob("mmf_win-*.whl")
    return zipfile.Path(built)


def test_every_module_is_in_it(wheel: zipfile.Path) -> None:
    names = set(wheel.root.namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mmf_win").rglob("*.py")}
    assert modules <= names
    assert "mmf_win/py.typed" in names


def test_the_presets_are_in_it(wheel: zipfile.Path) -> None:
    files = {f"mmf_win/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "configs").rglob("*.yaml")}
    assert files
    assert files <= set(wheel.root.namelist())


def test_nothing_else_is_in_it(wheel: zipfile.Path) -> None:
    assert {name.split("/")[0].split("-")[0] for name in wheel.root.namelist()} == {"mmf_win"}


def test_the_command_is_declared(wheel: zipfile.Path) -> None:
    (info,) = (path for path in wheel.iterdir() if path.name.endswith(".dist-info"))
    assert "mmfw = mmf_win.cli:main" in (info / "entry_points.txt").read_text(encoding="utf-8")
    assert (info / "licenses" / "LICENSE").exists()
