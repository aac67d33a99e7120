"""Import hooks that patch modules; each test creates its own package."""

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
def _isolated_finder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test its own finder, and remove the modules that it imported."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(patch, "_finder", patch._Finder())
    patch.install_finder()
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an importable package ``madeup`` with a module ``work``, and return its folder."""
    folder = tmp_path / "madeup"
    folder.mkdir()
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "work.py").write_text('WORD = "café"\n\n\ndef answer():\n    return 41\n', encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return folder


def apply_edit(package: Path, edit: Edit) -> None:
    """Apply a patch of one edit."""
    Patch("", "", edits=(edit,)).apply(package.parent)


def import_now(name: str) -> ModuleType:
    """Import a module by name."""
    return importlib.import_module(name)


class TestEdits:
    def test_change_compiled_code_but_not_the_file_and_can_use_extra_names(self, package: Path) -> None:
        original = (package / "work.py").read_bytes()
        apply_edit(package, Edit("madeup.work", "return 41", "return helper()", {"helper": lambda: 42}))
        module = import_now("madeup.work")
        assert module.answer() == 42
        assert module.WORD == "café"
        assert (package / "work.py").read_bytes() == original

    def test_apply_although_bytecode_of_file_is_cached(self, package: Path) -> None:
        assert import_now("madeup.work").answer() == 41
        del sys.modules["madeup.work"]
        apply_edit(package, Edit("madeup.work", "return 41", "return 42"))
        assert import_now("madeup.work").answer() == 42
        del sys.modules["madeup.work"]
        patch._finder.edits.clear()
        assert import_now("madeup.work").answer() == 41, "the cached bytecode must not contain the edit"

    def test_are_compiled_once_per_version_of_edit_and_file(
        self, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MMFW_HOME", str(tmp_path / "home"))

        def import_answer(new: str) -> object:
            patch._finder.edits.clear()
            sys.modules.pop("madeup.work", None)
            apply_edit(package, Edit("madeup.work", "return 41", new))
            return import_now("madeup.work").answer()

        def list_cached_files() -> list[Path]:
            return list((tmp_path / "home" / "bytecode").iterdir())

        assert [import_answer("return 42"), import_answer("return 42"), len(list_cached_files())] == [42, 42, 1]
        assert [import_answer("return 43"), len(list_cached_files())] == [43, 2]
        with (package / "work.py").open("a", encoding="utf-8") as file:
            file.write("    return 41\n")
        assert [import_answer("pass"), len(list_cached_files())] == [None, 3]
        for path in list_cached_files():
            path.write_bytes(b"damaged")
        assert [import_answer("pass"), len(list_cached_files())] == [None, 3]

    def test_keep_line_numbers(self, package: Path) -> None:
        apply_edit(package, Edit("madeup.work", "return 41", "return 1 / 0"))
        with pytest.raises(ZeroDivisionError) as caught:
            import_now("madeup.work").answer()
        frame = traceback.extract_tb(caught.value.__traceback__)[-1]
        assert (Path(frame.filename), frame.lineno) == (package / "work.py", 5)


class TestAfterImport:
    def test_functions_are_called_in_order_after_import(self, package: Path) -> None:
        calls: list[object] = []
        patch.call_after_import("madeup.work", lambda module: calls.append(module.WORD))
        patch.call_after_import("madeup.work", lambda module: calls.append("second"))
        assert calls == []
        import_now("madeup.work")
        assert calls == ["café", "second"]

    def test_function_is_called_at_once_for_imported_module(self, package: Path) -> None:
        module = import_now("madeup.work")
        modules: list[ModuleType] = []
        patch.call_after_import("madeup.work", modules.append)
        assert modules == [module]

    def test_function_runs_after_edits_and_source_stays_readable(self, package: Path) -> None:
        apply_edit(package, Edit("madeup.work", "return 41", "return 42"))
        patch.call_after_import("madeup.work", lambda module: setattr(module, "seen", module.answer()))
        module = import_now("madeup.work")
        assert module.seen == 42
        assert "return 41" in inspect.getsource(module)


def test_source_is_read_without_import_and_is_empty_for_missing_modules(package: Path, tmp_path: Path) -> None:
    assert "return 41" in patch.read_source("madeup.work", tmp_path)
    assert patch.source_path("madeup", tmp_path) == package / "__init__.py"
    assert "madeup" not in sys.modules
    assert patch.read_source("madeup.nothing", tmp_path) == patch.read_source("mmf.models", tmp_path) == ""
