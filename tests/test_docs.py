"""The documentation: what it quotes is what mmfw says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from mmf_win.errors import MmfwError

ROOT = Path(__file__).parents[1]
_LEFT_OPEN = "…"
_PYTORCHS = {"CUDA out of memory"}  # messages that are not of mmfw


def _said(node: ast.expr) -> str:
    """A text of the code with a sign for each part that is put in when it runs."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_said, node.values))
    return _LEFT_OPEN


@cache
def _texts() -> str:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "mmf_win").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = (node for node in nodes if isinstance(node, (ast.Constant, ast.JoinedStr)))
    return "\n".join(_said(text) for text in texts if id(text) not in prose)


def _quoted() -> list[str]:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    return [m for m in re.findall("^### `(.*)`$", page, re.MULTILINE) if m not in _PYTORCHS]


@pytest.mark.parametrize("message", _quoted())
def test_a_message_in_troubleshooting_is_one_of_the_code(message: str) -> None:
    assert message in _texts()


def _classes(of: type[MmfwError] = MmfwError) -> Iterator[type[MmfwError]]:
    yield of
    for below in of.__subclasses__():
        yield from _classes(below)


def test_the_exit_codes_are_those_of_the_errors() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d+) \|", page.partition("## Exit codes")[2], re.MULTILINE)
    assert {int(code) for code in listed} == {0, *(error.exit_code for error in _classes())}


def test_every_page_is_in_the_contents_of_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": ([a-z-]+\.md)$", site, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= set(listed)
