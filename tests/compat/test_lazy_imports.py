"""Lazy imports of modules that each test creates."""

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
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create an importable module that was not imported before, and return its name."""
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
    def test_module_is_imported_at_first_call_of_imported_name(self, slow_module: str, statement: str) -> None:
        edit = defer_import("somewhere.inside", slow_module)
        names: dict[str, Any] = {}
        exec(statement.replace(edit.old, edit.new), names)
        assert slow_module not in sys.modules
        assert names["add"](1, b=2) == 3
        assert type(names["Thing"]()) is sys.modules[slow_module].Thing

    def test_other_importers_get_the_real_module(self, slow_module: str) -> None:
        defer_import("somewhere.inside", slow_module)
        assert import_module(slow_module).add(1, 1) == 2

    def test_lazy_function_can_be_copied_and_pickled(self, slow_module: str) -> None:
        add = LazyModule(slow_module).add
        assert copy.copy(add) and copy.deepcopy(add) and pickle.loads(pickle.dumps(add))(1) == 2

    def test_relative_module_name_is_resolved(self) -> None:
        assert "somewhere.else_.thing import" in defer_import("somewhere.inside.it", "..else_.thing").new

    def test_other_import_from_same_module_is_not_edited(self) -> None:
        edit = defer_import("somewhere.inside", "slow_to_import", "(")
        assert edit.old not in "from slow_to_import import CONSTANT"

    @pytest.mark.parametrize("constant", ["ALL_PARALLEL_STYLES", "SUPPORTED_TP_STYLES"])
    def test_import_of_transformers_constant_is_not_edited(self, constant: str) -> None:
        statement = f"from .integrations.tensor_parallel import (\n    {constant},\n    _get_parameter_tp_plan,\n)\n"
        assert not [edit for patch in lazy_imports.PATCHES for edit in patch.edits if edit.old in statement]
        without_constant = statement.replace(f"    {constant},\n", "")
        assert [edit for patch in lazy_imports.PATCHES for edit in patch.edits if edit.old in without_constant]

    def test_missing_module_raises_error_at_call(self) -> None:
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            LazyModule("no_such_module").add(1)


STRUCTURE = {"bert": {frozenset({"torch"}): {"modeling_bert": {"BertModel"}}, frozenset(): {"a": {"b"}}}}


@pytest.mark.parametrize("loaded", [{}, {"torch._dynamo": None}])
def test_compiler_is_called_only_if_it_is_loaded(loaded: dict[str, None]) -> None:
    (edit,) = (edit for patch in lazy_imports.PATCHES for edit in patch.edits if "graph_break" in edit.old)
    calls: list[int] = []
    torch = SimpleNamespace(_dynamo=SimpleNamespace(graph_break=lambda: calls.append(1)))
    eval(edit.new, {"sys": SimpleNamespace(modules=loaded), "torch": torch})
    assert len(calls) == len(loaded)


class TestImportStructure:
    @pytest.fixture
    def models_dir(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Create a package that looks like transformers, and return its folder of models."""
        monkeypatch.setenv("MMFW_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        folder = tmp_path / "transformers" / "models"
        folder.mkdir(parents=True)
        for path in (folder, folder.parent):
            path.joinpath("__init__.py").write_text("", encoding="utf-8")
        self.write_metadata(folder, "4.57.6")
        return folder

    def write_metadata(self, models_dir: Path, version: str) -> None:
        info = models_dir.parents[1] / "transformers-4.57.6.dist-info"
        info.mkdir(exist_ok=True)
        info.joinpath("METADATA").write_text(f"Name: transformers\nVersion: {version}\n", encoding="utf-8")

    def is_read(self, path: Path) -> bool:
        """Return whether the import structure is read from the files instead of the cache."""
        calls: list[Path] = []
        structure = lazy_imports.cached_import_structure(
            lambda path: calls.append(path) or copy.deepcopy(STRUCTURE), path
        )
        assert structure == STRUCTURE
        structure["mine"] = {}  # transformers may change the returned object
        return len(calls) == 1

    def test_is_read_once(self, models_dir: Path) -> None:
        assert self.is_read(models_dir / "__init__.py")
        assert not self.is_read(models_dir) and not self.is_read(models_dir)

    @pytest.mark.parametrize("content", [b"", b"damaged", bytes(32) + marshal.dumps({})])
    def test_damaged_cache_file_is_replaced(self, models_dir: Path, tmp_path: Path, content: bytes) -> None:
        assert self.is_read(models_dir)
        [cache_file] = (tmp_path / "home" / "imports").iterdir()
        cache_file.write_bytes(content)
        assert self.is_read(models_dir) and not self.is_read(models_dir)

    def test_is_read_again_after_change_of_folder_or_version(self, models_dir: Path) -> None:
        self.is_read(models_dir)
        models_dir.joinpath("new").mkdir()
        assert self.is_read(models_dir)
        times = models_dir.stat()
        self.write_metadata(models_dir, "4.58")
        os.utime(models_dir, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert self.is_read(models_dir)

    @pytest.mark.parametrize("folder", ["checkout/transformers/models", "transformers/models/bert"])
    def test_of_checkout_or_single_model_is_always_read(self, models_dir: Path, tmp_path: Path, folder: str) -> None:
        """Files of a checkout can change without a new version."""
        (tmp_path / folder).mkdir(parents=True)
        assert self.is_read(tmp_path / folder) and self.is_read(tmp_path / folder)
        assert not (tmp_path / "home").exists()

    def test_is_always_read_if_cache_cannot_be_written(self, models_dir: Path, tmp_path: Path) -> None:
        (tmp_path / "home").write_text("a file", encoding="utf-8")
        assert self.is_read(models_dir) and self.is_read(models_dir)
