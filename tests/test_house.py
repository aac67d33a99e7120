"""The house rules that no linter knows: what is imported when, what is documented, what agrees with what."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmf_win.cli import COMMANDS
from mmf_win.doctor.survey import BASE, TRAIN

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "mmf_win").rglob("*.py"))
HEAVY = {"torch", "numpy", "mmf", "transformers", "omegaconf", "py7zr", "tqdm", "yaml"}


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8"
    )


def test_help_imports_nothing_heavy() -> None:
    # Under Wine both streams arrive as one.
    done = _python("-X", "importtime", "-m", "mmf_win", "--help")
    imported = {line.rsplit("|", 1)[-1].strip() for line in (done.stdout + done.stderr).splitlines()}
    assert "mmf_win.cli" in imported
    assert not HEAVY & imported


def test_the_commands_import_nothing_heavy_before_they_run() -> None:
    lines = [
        "import importlib, sys",
        "from mmf_win.cli import COMMANDS",
        "for name in COMMANDS: importlib.import_module('mmf_win.commands.' + name.replace('-', '_'))",
        f"print(*({HEAVY!r} & set(sys.modules)))",
    ]
    assert _python("-c", "\n".join(lines)).stdout.split() == []


def _undocumented(node: ast.Module | ast.ClassDef, where: str) -> Iterator[str]:
    if ast.get_docstring(node) is None:
        yield where
    for child in node.body:
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and child.name[0] != "_":
            name = f"{where}.{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from _undocumented(child, name)
            elif ast.get_docstring(child) is None:
                yield name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_public_name_is_documented(path: Path) -> None:
    assert list(_undocumented(ast.parse(path.read_text(encoding="utf-8")), path.stem)) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_module_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_readme(name: str) -> None:
    assert f"mmfw {name}" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_link_into_the_repository_leads_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!\w+:)([^)#]+)", (ROOT / name).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_pictures_are_small() -> None:
    pictures = list((ROOT / "docs").rglob("*.png"))
    assert pictures
    assert [picture.name for picture in pictures if picture.stat().st_size > 300_000] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_examples(name: str) -> None:
    told = _python("-m", "mmf_win", name, "--help").stdout
    assert "Examples:" in told or "Example:" in told


def test_doctor_looks_at_the_packages_that_are_required() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

    def required(key: str) -> tuple[str, ...]:
        listed = re.search(rf"^{key} = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
        assert listed is not None
        return tuple(re.findall(r'^\s*"([A-Za-z0-9_.-]+)', listed[1], re.MULTILINE))

    assert set(BASE) == set(required("dependencies"))
    assert set(TRAIN) == set(required("train"))


def test_every_required_package_is_pinned_for_the_tests() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    assert [name for name in (*BASE, *TRAIN) if f"\n{name}==" not in pins] == []
