"""Imports that are put off, with modules that are made up for each test."""

from __future__ import annotations

import copy
import marshal
import os
import pickle
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmf_win.compat import lazy_imports
from mmf_win.compat.lazy_imports import LazyModule, defer_import


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that nobody has imported."""
    name = "slow_to_import"
    tmp_path.joinpath(f"{name}.py").write_text(
        "class Thing:\n    kind = 'real'\n\n\ndef add(a, b=1):\n    return a + b\n", encoding="utf-8"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


class TestDeferImport:
    @pytest.mark.parametrize(
        "statement",
        [
            "from slow_to_import import add, Thing",
            "from slow_to_import import (\n    add,\n    Thing,\n)",
            "if True:\n    from slow_to_import import add, Thing",
        ],
    )
    def test_a_module_is_imported_at_the_first_call_of_what_it_has(self, slow: str, statement: str) -> None:
        edit = defer_import("somewhere.inside", slow)
        names: dict[str, Any] = {}
        exec(statement.replace(edit.old, edit.new), names)
        assert slow not in sys.modules
        assert names["add"](1, b=2) == 3
        assert type(names["Thing"]()) is sys.modules[slow].Thing

    def test_others_import_the_module_itself(self, slow: str) -> None:
        defer_import("somewhere.inside", slow)
        assert import_module(slow).add(1, 1) == 2

    def test_a_function_may_be_copied_and_pickled(self, slow: str) -> None:
        add = LazyModule(slow).add
        assert copy.copy(add) and copy.deepcopy(add) and pickle.loads(pickle.dumps(add))(1) == 2

    def test_a_relative_name_is_resolved(self) -> None:
        assert "somewhere.else_.thing import" in defer_import("somewhere.inside.it", "..else_.thing").new

    def test_another_statement_with_the_same_module_stays(self) -> None:
        edit = defer_import("somewhere.inside", "slow_to_import", "(")
        assert edit.old not in "from slow_to_import import CONSTANT"

    @pytest.mark.parametrize("constant", ["ALL_PARALLEL_STYLES", "SUPPORTED_TP_STYLES"])
    def test_an_import_of_a_constant_of_transformers_stays(self, constant: str) -> None:
        statement = f"from .integrations.tensor_parallel import (\n    {constant},\n    _get_parameter_tp_plan,\n)\n"
        assert not [edit for patch in lazy_imports.PATCHES for edit in patch.edits if edit.old in statement]
        function_alone = statement.replace(f"    {constant},\n", "")
        assert [edit for patch in lazy_imports.PATCHES for edit in patch.edits if edit.old in function_alone]

    def test_a_missing_module_is_told_of_at_the_call(self) -> None:
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            LazyModule("no_such_module").add(1)


FOUND = {"bert": {frozenset({"torch"}): {"modeling_bert": {"BertModel"}}, frozenset(): {"a": {"b"}}}}


@pytest.mark.parametrize("loaded", [{}, {"torch._dynamo": None}])
def test_the_compiler_is_told_only_where_it_is_loaded(loaded: dict[str, None]) -> None:
    (edit,) = (edit for patch in lazy_imports.PATCHES for edit in patch.edits if "graph_break" in edit.old)
    calls: list[int] = []
    torch = SimpleNamespace(_dynamo=SimpleNamespace(graph_break=lambda: calls.append(1)))
    eval(edit.new, {"sys": SimpleNamespace(modules=loaded), "torch": torch})
    assert len(calls) == len(loaded)


class TestStructure:
    @pytest.fixture
    def models(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A package that looks like transformers."""
        monkeypatch.setenv("MMFW_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        folder = tmp_path / "transformers" / "models"
        folder.mkdir(parents=True)
        for path in (folder, folder.parent):
            path.joinpath("__init__.py").write_text("", encoding="utf-8")
        self.install(folder, "4.57.6")
        return folder

    def install(self, models: Path, version: str) -> None:
        info = models.parents[1] / "transformers-4.57.6.dist-info"
        info.mkdir(exist_ok=True)
        info.joinpath("METADATA").write_text(f"Name: transformers\nVersion: {version}\n", encoding="utf-8")

    def is_read(self, path: Path) -> bool:
        """Return whether the files are read to find their definitions."""
        calls: list[Path] = []
        found = lazy_imports.cached_import_structure(lambda path: calls.append(path) or copy.deepcopy(FOUND), path)
        assert found == FOUND
        found["mine"] = {}  # as transformers may change what it got
        return len(calls) == 1

    def test_is_found_out_once(self, models: Path) -> None:
        assert self.is_read(models / "__init__.py")
        assert not self.is_read(models) and not self.is_read(models)

    @pytest.mark.parametrize("content", [b"", b"damaged", bytes(32) + marshal.dumps({})])
    def test_a_damaged_note_is_made_again(self, models: Path, tmp_path: Path, content: bytes) -> None:
        assert self.is_read(models)
        [note] = (tmp_path / "home" / "imports").iterdir()
        note.write_bytes(content)
        assert self.is_read(models) and not self.is_read(models)

    def test_of_another_installation_or_version_is_found_out_again(self, models: Path) -> None:
        self.is_read(models)
        models.joinpath("new").mkdir()
        assert self.is_read(models)
        times = models.stat()
        self.install(models, "4.58")
        os.utime(models, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert self.is_read(models)

    @pytest.mark.parametrize("folder", ["checkout/transformers/models", "transformers/models/bert"])
    def test_of_a_checkout_and_of_one_model_is_found_out_each_time(
        self, models: Path, tmp_path: Path, folder: str
    ) -> None:
        """The files of a checkout change under the same version."""
        (tmp_path / folder).mkdir(parents=True)
        assert self.is_read(tmp_path / folder) and self.is_read(tmp_path / folder)
        assert not (tmp_path / "home").exists()

    def test_where_nothing_can_be_written_it_is_found_out_each_time(self, models: Path, tmp_path: Path) -> None:
        (tmp_path / "home").write_text("a file", encoding="utf-8")
        assert self.is_read(models) and self.is_read(models)
