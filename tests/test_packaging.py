"""Contents of the sdist, and of the wheel built from it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.worlds.packages import ROOT, SDIST_FOLDERS, Packages, build_wheel
from tests.worlds.tools import is_wine

_EXTENSION = "mmf_win/archives/_zipcrypto"


@pytest.fixture
def wheel(packages: Packages) -> zipfile.Path:
    """Open the wheel that this environment builds."""
    return zipfile.Path(packages.wheel)


def _list_extensions(wheel: zipfile.Path) -> list[str]:
    return [name for name in wheel.root.namelist() if name.endswith((".so", ".pyd"))]


def _list_files(root: Path, folder: str) -> set[str]:
    paths = (path for path in (root / folder).rglob("*") if path.is_file())
    return {
        path.relative_to(root).as_posix()
        for path in paths
        if path.suffix not in {".pyc", ".so", ".pyd"} and ".egg-info" not in str(path)
    }


@pytest.mark.parametrize("folder", SDIST_FOLDERS)
def test_sdist_has_all_files_of_the_repository(packages: Packages, folder: str) -> None:
    assert _list_files(packages.source, folder) == _list_files(ROOT, folder)


@pytest.mark.wide
def test_tests_run_in_the_unpacked_sdist(packages: Packages) -> None:
    arguments = ["-q", "-p", "no:cacheprovider", "tests/archives/test_names.py", "tests/test_paths.py"]
    process = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=packages.source,
        env={**os.environ, "PYTHONPATH": str(packages.source), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert process.returncode == 0, process.stdout


@pytest.mark.parametrize(
    ("pattern", "parent"),
    [
        ("mmf_win/**/*.py", ""),
        ("mmf_win/py.typed", ""),
        ("mmf_win/results/report/templates/*", ""),
        ("configs/**/*.yaml", "mmf_win/"),
        ("constraints.txt", "mmf_win/"),
    ],
)
def test_wheel_has_the_files_that_mmfw_reads(wheel: zipfile.Path, pattern: str, parent: str) -> None:
    files = {parent + path.relative_to(ROOT).as_posix(): path for path in ROOT.glob(pattern)}
    assert files and files.keys() <= set(wheel.root.namelist())
    assert all(wheel.root.read(name) == path.read_bytes() for name, path in files.items())


def test_wheel_declares_the_command_and_has_one_package(wheel: zipfile.Path) -> None:
    (info,) = (path for path in wheel.iterdir() if path.name.endswith(".dist-info"))
    assert "mmfw = mmf_win.cli:main" in (info / "entry_points.txt").read_text(encoding="utf-8")
    assert (info / "licenses" / "LICENSE").exists()
    assert {path.name for path in wheel.iterdir()} == {"mmf_win", info.name}


@pytest.mark.wide
@pytest.mark.skipif(
    find_spec("twine") is None or find_spec("check_wheel_contents") is None,
    reason="not installed: twine and check-wheel-contents",
)
def test_sdist_and_wheel_pass_twine_and_check_wheel_contents(packages: Packages) -> None:
    for command in (
        ("twine", "check", "--strict", str(packages.sdist), str(packages.wheel)),
        ("check_wheel_contents", "--no-config", str(packages.wheel)),
    ):
        process = subprocess.run([sys.executable, "-m", *command], capture_output=True, encoding="utf-8")
        assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.wide
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no variable that disables its compiler")
def test_wheel_is_built_without_a_compiler(packages: Packages, tmp_path: Path) -> None:
    build_wheel(packages.source, tmp_path, CC="no-such-compiler")
    (wheel_file,) = tmp_path.glob("*.whl")
    wheel = zipfile.Path(wheel_file)
    assert _list_extensions(wheel) == []
    assert (wheel / "mmf_win" / "archives" / "zip_extract.py").exists()


@pytest.mark.skipif(is_wine(), reason="Windows has no compiler under Wine")
@pytest.mark.skipif(find_spec("mmf_win.archives._zipcrypto") is None, reason="built without the C extension")
def test_extension_is_built_for_the_stable_abi(wheel: zipfile.Path) -> None:
    assert [name.partition(".")[0] for name in _list_extensions(wheel)] == [_EXTENSION]
    assert "-cp310-abi3-" in str(wheel.root.filename)
