"""Random selection of mutants: small changes of the code that a test should detect."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

PACKAGES = {
    "archives": ["tests/archives", "tests/dataset/test_convert.py"],
    "unpacking": ["tests/unpacking", "tests/dataset"],
    "runs": ["tests/runs", "tests/commands/test_runs.py", "tests/commands/test_mistakes.py"],
    "worker/hooks": ["tests/worker/hooks", "tests/endtoend/test_checkpoints.py"],
    "sweeps": ["tests/sweeps", "tests/commands/test_sweep.py"],
    "tracking": ["tests/tracking"],
}
"""Packages to draw from, with the tests that should detect a change."""

_SYSTEM_CHECK = re.compile(r"\b(sys\.platform|os\.name|TYPE_CHECKING|__name__)\b")
_MESSAGE_FUNCTIONS = {"print_status", "print", "warn", "logger", "log", "logging", "warnings"}
_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: (r"<", "<="),
    ast.LtE: (r"<=", "<"),
    ast.Gt: (r">", ">="),
    ast.GtE: (r">=", ">"),
    ast.Eq: (r"==", "!="),
    ast.NotEq: (r"!=", "=="),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.Div: (r"/", "*"),
    ast.FloorDiv: (r"//", "*"),
}


class Change(NamedTuple):
    """Replacement in a source file.

    Attributes:
        kind: One word for the changed construct.
        function: The innermost function or class that contains it; empty at module level.
        start: Start of the replaced bytes in the file.
        end: End of the replaced bytes.
        text: The replacement.
    """

    kind: str
    function: str
    start: int
    end: int
    text: str


def draw_mutants(root: Path, seed: int, count: int) -> list[dict[str, Any]]:
    """Draw mutants evenly from the packages.

    Args:
        root: The checkout.
        seed: The same seed draws the same mutants from the same sources.
        count: Number of mutants; if it is not divisible, some packages get one more than others.

    Returns:
        Entries of a file of mutants, see ``tests/mutants/README.md``.
    """
    rng, entries = Random(seed), list[dict[str, Any]]()
    for number, (package, tests) in enumerate(PACKAGES.items()):
        files = sorted((root / "mmf_win" / package).rglob("*.py"))
        choices = [(file, change) for file in files for change in find_changes(file.read_bytes())]
        share = count // len(PACKAGES) + (number < count % len(PACKAGES))
        for file, change in rng.sample(choices, share):
            old, new = snippet(file.read_bytes(), change)
            names = (file.stem, change.function.lower(), change.kind)
            entry = {
                "id": "-".join(name.strip("_").replace("_", "-") for name in names if name),
                "file": file.relative_to(root).as_posix(),
                "old": old,
                "new": new,
                "tests": tests,
            }
            entries.append(entry)
    repeated = {name for name, times in Counter(entry["id"] for entry in entries).items() if times > 1}
    numbers = Counter[str]()
    for entry in entries:
        if entry["id"] in repeated:
            numbers[entry["id"]] += 1
            entry["id"] += f"-{numbers[entry['id']]}"
    return entries


def find_changes(source: bytes) -> list[Change]:
    """Return all possible changes of a module, in the order of its text."""
    return sorted(_ChangeFinder(source).find(), key=lambda change: (change.start, change.end, change.text))


def snippet(source: bytes, change: Change) -> tuple[list[str], list[str]]:
    """Return the changed lines before and after, with as many preceding lines as make them unique."""
    start = source.rfind(b"\n", 0, change.start) + 1
    end = source.find(b"\n", change.end)
    end = len(source) if end < 0 else end
    while start and source.count(source[start:end]) > 1:
        start = source.rfind(b"\n", 0, start - 1) + 1
    old = source[start:end]
    new = source[start : change.start] + change.text.encode() + source[change.end : end]
    return old.decode().split("\n"), new.decode().split("\n")


class _ChangeFinder:
    """Search for the possible changes of one module.

    Excluded are texts, type hints, decorators, messages to the user, and code for one system only.
    """

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def find(self) -> Iterator[Change]:
        """Yield the changes in no particular order."""
        yield from self._walk(ast.parse(self._source), "")

    def _walk(self, node: ast.AST, function: str) -> Iterator[Change]:
        if self._is_excluded(node):
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            function = node.name
        for kind, start, end, text in self._find_node_changes(node):
            yield Change(kind, function, start, end, text)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._walk(child, function)

    def _is_excluded(self, node: ast.AST) -> bool:
        if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Import, ast.ImportFrom)):
            return True
        if isinstance(node, (ast.If, ast.IfExp)):
            return bool(_SYSTEM_CHECK.search(self._text(node.test)))
        if isinstance(node, ast.Call):
            names = (inner.id for inner in ast.walk(node.func) if isinstance(inner, ast.Name))
            return not _MESSAGE_FUNCTIONS.isdisjoint(names)
        return _is_type(node)

    def _find_node_changes(self, node: ast.AST) -> Iterator[tuple[str, int, int, str]]:
        """Yield kind, start, end and new text of each change of a node itself."""
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from self._find_operator_change(
                node.left, node.comparators[0], _COMPARISONS[type(node.ops[0])], "comparison"
            )
        elif isinstance(node, ast.BoolOp):
            swap = (r"\band\b", "or") if isinstance(node.op, ast.And) else (r"\bor\b", "and")
            for left, right in pairwise(node.values):
                yield from self._find_operator_change(left, right, swap, swap[1])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield "not", self._start(node), self._start(node.operand), ""
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            if not (_is_text(node.left) or _is_text(node.right)):
                yield from self._find_operator_change(node.left, node.right, _ARITHMETIC[type(node.op)], "arithmetic")
        elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            new = not node.value if isinstance(node.value, bool) else node.value + 1
            yield "constant", self._start(node), self._end(node), repr(new)
        else:
            yield from self._find_statement_changes(node)

    def _find_statement_changes(self, node: ast.AST) -> Iterator[tuple[str, int, int, str]]:
        """Yield the changes of a statement."""
        if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
            if not _is_text(node.value):
                yield from self._find_operator_change(node.target, node.value, _ARITHMETIC[type(node.op)], "arithmetic")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if not self._is_excluded(node.value):
                yield "no-call", self._start(node), self._end(node), "pass"
        elif isinstance(node, ast.Return):
            if node.value is not None and not isinstance(node.value, ast.Constant):
                yield "return", self._start(node.value), self._end(node.value), "None"
        elif isinstance(node, (ast.If, ast.While)):
            is_plain = isinstance(node.test, (ast.Name, ast.Call, ast.Attribute))
            if is_plain and not self._is_excluded(node.test):
                yield "not", self._start(node.test), self._end(node.test), f"not {self._text(node.test)}"

    def _find_operator_change(
        self, left: ast.expr, right: ast.expr, swap: tuple[str, str], kind: str
    ) -> Iterator[tuple[str, int, int, str]]:
        """Yield the replacement of an operator; search the text for it, since the tree lacks its position."""
        start, end = self._end(left), self._start(right)
        old, new = swap
        if match := re.search(old.encode(), self._source[start:end]):
            yield kind, start + match.start(), start + match.end(), new

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self._source[self._start(node) : self._end(node)].decode()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def _is_type(node: ast.AST) -> bool:
    """Return whether a node is a type such as that of ``list[str]()``."""
    names = {"list", "dict", "set", "tuple", "frozenset", "deque", "Counter"}
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in names
