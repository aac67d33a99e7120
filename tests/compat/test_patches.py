"""The table of patches, and those that need neither MMF nor torch to be tried; the MMF here is made up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest

from mmf_win import compat
from mmf_win.compat import lazy_imports, mmf_data, mmf_models, omegaconf
from mmf_win.compat.__main__ import main as list_patches
from mmf_win.compat.patch import RC10, RC12, Edit, Patch, source_lacks
from mmf_win.errors import DamagedFeaturesError
from mmf_win.upstream.versions import VERSION_SPECIFIC_KEYS


@pytest.mark.parametrize("each", compat.PATCHES, ids=lambda each: each.name)
def test_every_patch_says_what_it_is_for(each: Patch) -> None:
    assert each.mmf_versions <= set(VERSION_SPECIFIC_KEYS)
    assert each.mmf_versions
    assert each.library
    assert len(each.problem) > 30, "a sentence: what breaks, and where"
    assert len(each.problem) < 110, "one line of a table"
    assert all(edit.old.count("\n") == edit.new.count("\n") for edit in each.edits), "lines stay the same"


def test_the_table_has_every_patch_once() -> None:
    found = {
        id(value)
        for module in iter_modules(compat.__path__)
        if module.name not in ("__main__", "replacements")  # torch may not be installed
        for value in vars(import_module(f"{compat.__name__}.{module.name}")).get("PATCHES", ())
    }
    assert found == {id(each) for each in compat.PATCHES}
    assert len({each.name for each in compat.PATCHES}) == len(compat.PATCHES)


def made_up_mmf(root: Path, **modules: str) -> tuple[Path, str]:
    """Return a folder with a package ``mmf`` of these modules and its version."""
    (root / "mmf").mkdir(parents=True)
    (root / "mmf" / "__init__.py").write_text("", encoding="utf-8")
    for name, text in modules.items():
        (root / "mmf" / f"{name}.py").write_text(text, encoding="utf-8")
    return root, "1.0.0rc10"


@pytest.mark.parametrize(
    ("work", "mmf", "needed", "active"),
    [
        ("some old words", RC10, lambda: True, True),
        ("words of the user's own", RC10, lambda: True, False),
        (None, RC10, lambda: True, False),
        ("some old words", RC12, lambda: True, False),
        ("some old words", RC10, source_lacks("json.decoder", "class JSONDecoder"), False),
        ("some old words", RC10, source_lacks("json.decoder", "class NoSuchThing"), True),
    ],
)
def test_a_patch_is_needed_while_mmf_has_the_words_in_its_versions_unless_libraries_do_without(
    tmp_path: Path, work: str | None, mmf: frozenset[str], needed: Callable[[], bool], active: bool
) -> None:
    each = Patch("", "", mmf, "", edits=(Edit("mmf.work", "old words", "new words"),), is_needed=needed)
    modules = {} if work is None else {"work": work}
    assert each.is_active(*made_up_mmf(tmp_path, **modules)) == active


class TestInstall:
    def test_comes_before_mmf(self, tmp_path: Path) -> None:
        """In a process of its own, with a made-up MMF that is its own proof."""
        made_up_mmf(tmp_path, version='__version__ = "1.0.0rc10"\n')
        lines = [
            "import sys",
            "from pathlib import Path",
            "from mmf_win import compat",
            f"root = Path({str(tmp_path)!r})",
            "compat.install(root)",
            "assert sys.path.count(str(root.resolve())) == 1",
            "import mmf.version",
            "try: compat.install(root.parent)",
            "except RuntimeError as error: print(error)",
        ]
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(lines)],
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
        )
        assert "before mmf is imported" in done.stdout

    def test_a_list_has_all_and_changes_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path, meta_path = list(sys.path), list(sys.meta_path)
        root, version = made_up_mmf(tmp_path, version="")
        list_patches(str(root), version)
        assert [each["name"] for each in json.loads(capsys.readouterr().out)] == [p.name for p in compat.PATCHES]
        assert (sys.path, sys.meta_path) == (path, meta_path)


def test_a_model_is_a_bert_by_what_its_folder_holds_and_else_by_its_name_as_mmf_takes_it(user_dir: Path) -> None:
    for kind in ("bert", "roberta"):
        (user_dir / "config.json").write_text(f'{{"model_type": "{kind}"}}', encoding="utf-8")
        assert mmf_models.is_bert(str(user_dir)) == mmf_models.is_bert(f"{kind}-base") == (kind == "bert")


def test_a_url_is_no_text_link() -> None:
    assert omegaconf.resolve_text_link("https://example.org/a.yaml") == "https://example.org/a.yaml"


def test_a_torch_that_has_the_compilers_import_elsewhere_stays_as_it_is() -> None:
    [edit] = [edit for edit in lazy_imports.PATCHES[0].edits if edit.module == "torch._compile"]
    of_torch_2_1 = "        def inner():\n            import torch._dynamo\n\n            return 1\n"
    assert edit.old not in of_torch_2_1


def test_an_image_whose_name_is_no_text_is_told_of_as_the_features_record() -> None:
    class Reader:
        db_path = "features"

        def _load(self, image_file_path: str) -> bytes:
            return image_file_path.encode()

    module: Any = ModuleType("readers")
    module.LMDBFeatureReader = Reader
    mmf_data._restrict_lmdb_loader(module)
    with pytest.raises(DamagedFeaturesError, match="features: damaged: record "):
        Reader()._load("\udc80.npy")
