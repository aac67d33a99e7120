"""What a user gets from the wheel."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_NEEDED = ("pip", "setuptools")
_EXTENSION = "mmf_win/archives/_zipcrypto"
_BUILT = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")


def _build(source: Path, **environ: str) -> zipfile.Path:
    """The wheel, built from a copy: setuptools writes into the folder that it builds from."""
    if sys.platform == "win32" and not all(importlib.util.find_spec(name) for name in _NEEDED):
        pytest.skip("this Windows Python cannot build a wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("mmf_win", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=_BUILT)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", "out", "."]
    subprocess.run(build, cwd=source, env={**os.environ, **environ}, check=True)
    (built,) = (source / "out").glob("mmf_win-*.whl")
    return zipfile.Path(built)


def _extensions(wheel: zipfile.Path) -> list[str]:
    return [name for name in wheel.root.namelist() if name.endswith((".so", ".pyd"))]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """The wheel as it is built here."""
    return _build(tmp_path_factory.mktemp("source"))


def test_every_module_is_in_it(wheel: zipfile.Path) -> None:
    names = set(wheel.root.namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mmf_win").rglob("*.py")}
    assert modules <= names
    assert "mmf_win/py.typed" in names


def test_the_presets_are_in_it(wheel: zipfile.Path) -> None:
    files = {f"mmf_win/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "configs").rglob("*.yaml")}
    assert files
    assert files <= set(wheel.root.namelist())


def test_the_templates_of_the_pages_are_in_it(wheel: zipfile.Path) -> None:
    templates = (ROOT / "mmf_win" / "results" / "report" / "templates").iterdir()
    files = {path.relative_to(ROOT).as_posix() for path in templates}
    assert files
    assert files <= set(wheel.root.namelist())


def test_nothing_else_is_in_it(wheel: zipfile.Path) -> None:
    assert {name.split("/")[0].split("-")[0] for name in wheel.root.namelist()} == {"mmf_win"}


def test_the_command_is_declared(wheel: zipfile.Path) -> None:
    (info,) = (path for path in wheel.iterdir() if path.name.endswith(".dist-info"))
    assert "mmfw = mmf_win.cli:main" in (info / "entry_points.txt").read_text(encoding="utf-8")
    assert (info / "licenses" / "LICENSE").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no variable that takes its compiler away")
def test_without_a_compiler_the_rest_is_built(tmp_path: Path) -> None:
    wheel = _build(tmp_path, CC="no-such-compiler")
    assert _extensions(wheel) == []
    assert (wheel / "mmf_win" / "archives" / "zip_extract.py").exists()


@pytest.mark.skipif(
    importlib.util.find_spec("mmf_win.archives._zipcrypto") is None, reason="built without the C extension"
)
def test_one_build_of_the_extension_serves_every_python(wheel: zipfile.Path) -> None:
    assert [name.partition(".")[0] for name in _extensions(wheel)] == [_EXTENSION]
    assert "-cp310-abi3-" in str(wheel.root.filename)
