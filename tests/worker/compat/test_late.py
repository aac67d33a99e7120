"""Imports that are put off, with modules that are made up for each test."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mmf_win.worker.compat import late
from mmf_win.worker.compat.late import Late, later


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


class TestLate:
    def test_is_imported_when_it_is_called(self, slow: str) -> None:
        add = Late(slow, "add")
        assert slow not in sys.modules
        assert add(1, b=2) == 3
        assert slow in sys.modules

    def test_may_be_copied_and_stand_in_an_annotation(self, slow: str) -> None:
        add = copy.copy(Late(slow, "add"))
        assert add | None and None | add
        assert slow not in sys.modules

    def test_stands_for_a_class(self, slow: str) -> None:
        thing = Late(slow, "Thing")
        assert thing.kind == "real"
        assert isinstance(sys.modules[slow].Thing(), thing)  # type: ignore[arg-type]
        assert not isinstance(1, thing)  # type: ignore[arg-type]


class TestLater:
    @pytest.mark.parametrize(
        "statement",
        [
            "from slow_to_import import add, Thing",
            "from slow_to_import import (\n    add,\n    Thing,\n)",
            "    from slow_to_import import add, Thing",
            "from .slow_to_import import add, Thing",
        ],
    )
    def test_an_import_becomes_names(self, statement: str) -> None:
        edit = later("somewhere.inside", statement)
        names: dict[str, Any] = dict(edit.names)
        exec(edit.new.strip(), names)
        inside = "somewhere." if "from ." in statement else ""
        assert names["add"]._module == f"{inside}slow_to_import"
        assert names["Thing"]._name == "Thing"
        assert edit.new.count("\n") == statement.count("\n")
        assert edit.new.startswith(" ") == statement.startswith(" ")


FOUND = {frozenset({"torch"}): {"bert.modeling_bert": {"BertModel"}}, frozenset(): {"bert": {"a", "b"}}}


class TestStructure:
    @pytest.fixture
    def models(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A package that looks like transformers."""
        monkeypatch.setenv("MMFW_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        folder = tmp_path / "transformers" / "models"
        info = tmp_path / "transformers-4.57.6.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text("Name: transformers\nVersion: 4.57.6\n", encoding="utf-8")
        folder.mkdir(parents=True)
        for path in (folder, folder.parent):
            path.joinpath("__init__.py").write_text("", encoding="utf-8")
        return folder

    def module(self, calls: list[Any]) -> Any:
        """What has ``define_import_structure``."""

        def define(module_path: Any, prefix: str | None = None) -> Any:
            calls.append((module_path, prefix))
            return {backends: {**files} for backends, files in FOUND.items()}

        module: Any = ModuleType("import_utils")
        module.define_import_structure = define
        late.remember_structure(module)
        return module

    def test_is_found_out_once(self, models: Path) -> None:
        calls: list[Any] = []
        for _ in range(2):
            module = self.module(calls)
            found = module.define_import_structure(models / "__init__.py")
            assert found == FOUND
            found[frozenset()]["mine"] = {"c"}  # as transformers changes what it got
            assert module.define_import_structure(models, prefix="models") == FOUND
        assert len(calls) == 2

    def test_of_another_installation_is_found_out_again(self, models: Path) -> None:
        calls: list[Any] = []
        self.module(calls).define_import_structure(models)
        models.joinpath("new").mkdir()
        self.module(calls).define_import_structure(models)
        assert len(calls) == 2

    def test_of_another_version_is_found_out_again(self, models: Path) -> None:
        calls: list[Any] = []
        self.module(calls).define_import_structure(models)
        times = models.stat()
        [info] = models.parents[1].glob("*.dist-info")
        info.joinpath("METADATA").write_text("Name: transformers\nVersion: 4.58\n", encoding="utf-8")
        os.utime(models, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.module(calls).define_import_structure(models)
        assert len(calls) == 2

    def test_of_a_checkout_is_found_out_each_time(self, models: Path, tmp_path: Path) -> None:
        """Its files change under the same version."""
        checkout = tmp_path / "checkout" / "transformers" / "models"
        checkout.mkdir(parents=True)
        self.module([]).define_import_structure(checkout)
        assert not (tmp_path / "home").exists()

    def test_of_one_model_is_not_kept(self, models: Path, tmp_path: Path) -> None:
        one = models / "bert"
        one.mkdir()
        self.module([]).define_import_structure(one)
        assert not (tmp_path / "home").exists()

    def test_where_nothing_can_be_written_it_is_found_out_each_time(
        self, models: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "home").write_text("a file", encoding="utf-8")
        assert self.module([]).define_import_structure(models) == FOUND


def test_the_compiler_is_told_only_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    late.graph_break()
    calls: list[int] = []
    fake = SimpleNamespace(graph_break=lambda: calls.append(1))
    monkeypatch.setitem(sys.modules, "torch._dynamo", fake)  # type: ignore[arg-type]
    late.graph_break()
    assert calls == [1]
