"""Builds of the published packages, and an environment with only their dependencies."""

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
# The metadata of hidden distributions stays readable, but their modules cannot be imported.
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
    """Published packages: the sdist, its unpacked content, and the wheel built from it."""

    sdist: Path
    source: Path
    wheel: Path


def build_packages(folder: Path) -> Packages:
    """Build the packages in a folder; all processes that call this with the same folder share one build."""
    folder.mkdir(exist_ok=True)
    with file_lock(folder / "lock", timeout=float("inf")):
        if not (folder / "done").exists():
            _build_sdist(folder)
            build_wheel(next(folder.glob("unpacked/*")), folder)
            (folder / "done").touch()
    (sdist,), (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("unpacked/*"), folder.glob("*.whl")
    return Packages(sdist, source, wheel)


def _build_sdist(folder: Path) -> None:
    # Build from a copy, because setuptools writes to the source folder.
    copy = folder / "copy"
    for name in SDIST_FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=_IGNORE_BUILD_OUTPUTS)
    for file in ROOT.iterdir():
        if file.is_file() and (file.suffix in _TOP_LEVEL_SUFFIXES or file.name in _TOP_LEVEL_NAMES):
            shutil.copy(file, copy)
    _run_quietly(sys.executable, "-c", _BUILD_SDIST_CODE, str(folder), cwd=copy)
    untar(next(folder.glob("*.tar.gz")), folder / "unpacked")


def build_wheel(source: Path, folder: Path, **environment: str) -> None:
    """Build the wheel with the installed build tools and these environment variables, without a network."""
    shutil.rmtree(source / "build", ignore_errors=True)  # earlier build outputs would be reused
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    _run_quietly(*pip, "-w", str(folder), ".", cwd=source, **environment)


def install_wheel_isolated(wheel: Path, folder: Path, *extras: str) -> None:
    """Install the wheel in a folder for PYTHONPATH that hides all packages except those of the extras."""
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(folder)]
    _run_quietly(*pip, str(wheel), cwd=wheel.parent)
    visible = {*_required_distributions("mmf-win", {"", *extras}), "mmf", "mmf-win"}
    hidden = [
        name
        for name, distributions in importlib.metadata.packages_distributions().items()
        if visible.isdisjoint(map(_normalize_name, distributions))
    ]
    (folder / "sitecustomize.py").write_text(f"hidden = {hidden!a}\n{_HIDE_PACKAGES_CODE}", encoding="ascii")


def clean_environment() -> dict[str, str]:
    """Return the environment without variables that make another Python find the checkout or an MMF."""
    cache_prefix = "PYTHONPYCACHEPREFIX"  # harmless: it only separates compiled files
    names = [name for name in os.environ if name == cache_prefix or not name.startswith(("MMF", "PYTHON"))]
    return {name: os.environ[name] for name in names}


def _required_distributions(name: str, extras: Iterable[str]) -> set[str]:
    """Return the distributions that a distribution with these extras requires, directly or indirectly."""
    from packaging.requirements import Requirement

    extras_by_name: dict[str, set[str]] = {}
    queue = [(name, set(extras))]
    while queue:
        name, wanted_extras = queue.pop()
        key = _normalize_name(name)
        if not (new_extras := ({""} | wanted_extras) - extras_by_name.get(key, set())):
            continue
        extras_by_name[key] = extras_by_name.get(key, set()) | new_extras
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in new_extras):
                queue.append((requirement.name, set(requirement.extras)))
    return set(extras_by_name) - {"mmf-win"}


def _normalize_name(name: str) -> str:
    """Return the normalized name of a distribution, as package indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _run_quietly(*command: str, cwd: Path, **environment: str) -> None:
    subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, check=True, stdout=subprocess.DEVNULL)
