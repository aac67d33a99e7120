"""Lists of mutants, and the random selection of new mutants."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

from tests.worlds.tools import load_script

ROOT = Path(__file__).parents[1]
MUTANT_FILES = sorted((ROOT / "tests" / "mutants").glob("*.json"))
SOURCE = '''
def rest(values: list[int], limit: int = 3) -> int:
    """Return 1 or 2."""
    if values and not limit:
        values.clear()
    print("é", len(values) == 1)
    return "é" in values
'''


@pytest.fixture(scope="module")
def mutate() -> ModuleType:
    """Return the script that runs mutants."""
    return load_script("mutate")


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    """Return the module that draws mutants."""
    return load_script("_draw_mutants")


@pytest.mark.parametrize("path", MUTANT_FILES, ids=lambda path: path.stem)
def test_mutants_match_the_code(mutate: ModuleType, path: Path) -> None:
    for mutant in mutate.read_mutants(path):
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, f"{mutant.id}: its old text occurs {text.count(mutant.old)} times"
        assert mutant.new != mutant.old, mutant.id
        ast.parse(text.replace(mutant.old, mutant.new))


@pytest.mark.parametrize("path", MUTANT_FILES, ids=lambda path: path.stem)
def test_tests_of_mutants_exist(mutate: ModuleType, path: Path) -> None:
    tests = {test for mutant in mutate.read_mutants(path) for test in mutant.tests}
    assert [test for test in tests if not (ROOT / test.partition("::")[0]).exists()] == []


def test_ids_of_mutants_are_unique(mutate: ModuleType) -> None:
    ids = [mutant.id for path in MUTANT_FILES for mutant in mutate.read_mutants(path)]
    assert len(ids) == len(set(ids))


def test_strings_and_type_hints_are_never_changed(drawing: ModuleType) -> None:
    source = SOURCE.encode()
    drawn = [(change.kind, source[change.start : change.end].decode()) for change in drawing.find_changes(source)]
    assert drawn == [
        ("constant", "3"),
        ("or", "and"),
        ("not", "not "),
        ("no-call", "values.clear()"),
        ("return", '"é" in values'),
        ("comparison", "in"),
    ]


def test_change_is_unambiguous_and_leaves_valid_code(drawing: ModuleType) -> None:
    source = SOURCE.encode()
    for change in drawing.find_changes(source):
        old, new = ("\n".join(lines) for lines in drawing.snippet(source, change))
        assert SOURCE.count(old) == 1
        ast.parse(SOURCE.replace(old, new))


def test_same_seed_draws_the_same_mutants(drawing: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "PACKAGES", {"unpacking": ["tests/unpacking"], "integrity": ["tests"]})
    first = drawing.draw_mutants(ROOT, 4, 13)
    assert [mutant["tests"] for mutant in first] == [["tests/unpacking"]] * 7 + [["tests"]] * 6
    assert len({mutant["id"] for mutant in first}) == 13
    assert drawing.draw_mutants(ROOT, 4, 13) == first
    assert drawing.draw_mutants(ROOT, 5, 13) != first


def test_unknown_id_is_refused(mutate: ModuleType) -> None:
    with pytest.raises(SystemExit, match="neither a file of mutants nor a mutant's ID"):
        mutate.select_mutants(["no-such-mutant"])
