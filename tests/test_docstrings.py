"""First words of docstrings, which ruff checks only for functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text is not None:
                yield getattr(node, "lineno", 1), text


@pytest.mark.parametrize("folder", ["mmf_win", "scripts", "tests"])
def test_docstrings_do_not_start_with_a_vague_word(folder: str) -> None:
    vague = re.compile(r"(What|Those|Whether|Why|How|Where|Which|Of|Its|As|The same|In the place)\b")
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    locations = [
        f"{path.relative_to(ROOT).as_posix()}:{line}"
        for path in paths
        for line, text in _docstrings(path)
        if vague.match(text)
    ]
    assert locations == []
