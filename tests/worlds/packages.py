"""The packages that are published, built here, and a Python that has no more than they ask for."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mmf_win.locking import file_lock
from tests.worlds.tools import untar

ROOT = Path(__file__).parents[2]
SDIST_FOLDERS = (".ci", ".github", "configs", "docs", "mmf_win", "scripts", "tests")
_TOP_LEVEL_SUFFIXES = (".cfg", ".in", ".md", ".py", ".toml", ".txt", ".yml")
_TOP_LEVEL_NAMES = ("LICENSE", "Dockerfile", ".dockerignore")
_IGNORE_BUILD_OUTPUTS = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", "*.egg-info")
_BUILD_SDIST_CODE = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
# The distributions stay known, but what they have cannot be imported.
_HIDE_PACKAGES_CODE = """
import sys
from importlib.machinery import PathFinder

class Visible(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Visible
"""


class Packages(NamedTuple):
    """The published packages: the sdist, its unpacked contents, and the wheel built from it."""

    sdist: Path
    source: Path
    wheel: Path


def build_packages(folder: Path) -> Packages:
    """Build both in a folder, once for all processes that ask for it there."""
    folder.mkdir(exist_ok=True)
    with file_lock(folder / "lock", timeout=float("inf")):
        if not (folder / "done").exists():
            _build_sdist(folder)
            build_wheel(next(folder.glob("unpacked/*")), folder)
            (folder / "done").touch()
    (sdist,), (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("unpacked/*"), folder.glob("*.whl")
    return Packages(sdist, source, wheel)


def _build_sdist(folder: Path) -> None:
    # From a copy: setuptools writes into the folder that it builds from.
    copy = folder / "copy"
    for name in SDIST_FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=_IGNORE_BUILD_OUTPUTS)
    for file in ROOT.iterdir():
        if file.is_file() and (file.suffix in _TOP_LEVEL_SUFFIXES or file.name in _TOP_LEVEL_NAMES):
            shutil.copy(file, copy)
    _run_quietly(sys.executable, "-c", _BUILD_SDIST_CODE, str(folder), cwd=copy)
    untar(next(folder.glob("*.tar.gz")), folder / "unpacked")


def build_wheel(source: Path, folder: Path, **environ: str) -> None:
    """Build the wheel with what is installed here and these variables, and nothing from a network."""
    shutil.rmtree(source / "build", ignore_errors=True)  # what was compiled before would be taken again
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    _run_quietly(*pip, "-w", str(folder), ".", cwd=source, **environ)


def install_wheel_isolated(wheel: Path, folder: Path, *extras: str) -> None:
    """Make a folder for PYTHONPATH that has the wheel, and hides packages that the extras do not ask for."""
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(folder)]
    _run_quietly(*pip, str(wheel), cwd=wheel.parent)
    asked_for = {*_required_distributions("mmf-win", {"", *extras}), "mmf", "mmf-win"}
    hidden = [
        name
        for name, distributions in importlib.metadata.packages_distributions().items()
        if asked_for.isdisjoint(map(_normalize_name, distributions))
    ]
    (folder / "sitecustomize.py").write_text(f"hidden = {hidden!a}\n{_HIDE_PACKAGES_CODE}", encoding="ascii")


def clean_environment() -> dict[str, str]:
    """The variables of this process without those that lead another Python to the checkout or to an MMF."""
    compiled = "PYTHONPYCACHEPREFIX"  # leads nowhere, and keeps compiled files apart
    kept = [name for name in os.environ if name == compiled or not name.startswith(("MMF", "PYTHON"))]
    return {name: os.environ[name] for name in kept}


def _required_distributions(name: str, extras: Iterable[str]) -> set[str]:
    """The distributions that one requires with some of its extras, and those that these require."""
    from packaging.requirements import Requirement

    found: dict[str, set[str]] = {}
    left = [(name, set(extras))]
    while left:
        name, wanted = left.pop()
        key = _normalize_name(name)
        if not (new := ({""} | wanted) - found.get(key, set())):
            continue
        found[key] = found.get(key, set()) | new
        for text in importlib.metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in new):
                left.append((needed.name, set(needed.extras)))
    return set(found) - {"mmf-win"}


def _normalize_name(name: str) -> str:
    """The name of a distribution as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _run_quietly(*command: str, cwd: Path, **environ: str) -> None:
    subprocess.run(command, cwd=cwd, env={**os.environ, **environ}, check=True, stdout=subprocess.DEVNULL)
