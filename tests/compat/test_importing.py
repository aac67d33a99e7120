"""Modules become what was queued for them; the packages here are made up for each test."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from mmf_win.compat import patch
from mmf_win.compat.patch import Edit, Patch


@pytest.fixture(autouse=True)
def _own_finders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Finders of the test's own, and none of its modules left behind."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(patch, "_finder", patch._Finder())
    patch.install_finder()
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package named ``madeup`` with a module ``work``, importable."""
    folder = tmp_path / "madeup"
    folder.mkdir()
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "work.py").write_text('WORD = "café"\n\n\ndef answer():\n    return 41\n', encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return folder


def queue(package: Path, edit: Edit) -> None:
    """Apply a patch of one edit."""
    Patch("", "", edits=(edit,)).apply(package.parent)


def load(name: str) -> ModuleType:
    """The module, imported now."""
    return importlib.import_module(name)


class TestEdits:
    def test_change_what_is_compiled_and_not_the_file_and_may_name_what_the_module_lacks(self, package: Path) -> None:
        before = (package / "work.py").read_bytes()
        queue(package, Edit("madeup.work", "return 41", "return helper()", {"helper": lambda: 42}))
        module = load("madeup.work")
        assert module.answer() == 42
        assert module.WORD == "café"
        assert (package / "work.py").read_bytes() == before

    def test_hold_although_the_bytecode_of_the_file_is_cached(self, package: Path) -> None:
        assert load("madeup.work").answer() == 41
        del sys.modules["madeup.work"]
        queue(package, Edit("madeup.work", "return 41", "return 42"))
        assert load("madeup.work").answer() == 42
        del sys.modules["madeup.work"]
        patch._finder.edits.clear()
        assert load("madeup.work").answer() == 41, "an edit must not reach the cache either"

    def test_are_compiled_once_and_again_when_they_or_the_file_change(
        self, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MMFW_HOME", str(tmp_path / "home"))

        def answer(new: str) -> object:
            patch._finder.edits.clear()
            sys.modules.pop("madeup.work", None)
            queue(package, Edit("madeup.work", "return 41", new))
            return load("madeup.work").answer()

        def kept() -> list[Path]:
            return list((tmp_path / "home" / "bytecode").iterdir())

        assert [answer("return 42"), answer("return 42"), len(kept())] == [42, 42, 1]
        assert [answer("return 43"), len(kept())] == [43, 2]
        with (package / "work.py").open("a", encoding="utf-8") as file:
            file.write("    return 41\n")
        assert [answer("pass"), len(kept())] == [None, 3]
        for path in kept():
            path.write_bytes(b"damaged")
        assert [answer("pass"), len(kept())] == [None, 3]

    def test_leave_line_numbers_as_they_are(self, package: Path) -> None:
        queue(package, Edit("madeup.work", "return 41", "return 1 / 0"))
        with pytest.raises(ZeroDivisionError) as caught:
            load("madeup.work").answer()
        frame = traceback.extract_tb(caught.value.__traceback__)[-1]
        assert (Path(frame.filename), frame.lineno) == (package / "work.py", 5)


class TestAfterImport:
    def test_calls_follow_the_module_in_order(self, package: Path) -> None:
        seen: list[object] = []
        patch.call_after_import("madeup.work", lambda module: seen.append(module.WORD))
        patch.call_after_import("madeup.work", lambda module: seen.append("second"))
        assert seen == []
        load("madeup.work")
        assert seen == ["café", "second"]

    def test_a_module_that_is_there_is_handed_over_at_once(self, package: Path) -> None:
        module = load("madeup.work")
        seen: list[ModuleType] = []
        patch.call_after_import("madeup.work", seen.append)
        assert seen == [module]

    def test_go_together_with_edits_and_leave_the_source_readable(self, package: Path) -> None:
        queue(package, Edit("madeup.work", "return 41", "return 42"))
        patch.call_after_import("madeup.work", lambda module: setattr(module, "seen", module.answer()))
        module = load("madeup.work")
        assert module.seen == 42
        assert "return 41" in inspect.getsource(module)


def test_a_source_is_found_without_an_import_and_empty_where_there_is_none(package: Path, tmp_path: Path) -> None:
    assert "return 41" in patch.read_source("madeup.work", tmp_path)
    assert patch.source_path("madeup", tmp_path) == package / "__init__.py"
    assert "madeup" not in sys.modules
    assert patch.read_source("madeup.nothing", tmp_path) == patch.read_source("mmf.models", tmp_path) == ""
