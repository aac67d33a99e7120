"""Table of patches, and patches that can be tested with a fake MMF and without torch."""

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


@pytest.mark.parametrize("patch", compat.PATCHES, ids=lambda patch: patch.name)
def test_every_patch_describes_its_problem(patch: Patch) -> None:
    assert patch.mmf_versions <= set(VERSION_SPECIFIC_KEYS)
    assert patch.mmf_versions
    assert patch.library
    assert len(patch.problem) > 30, "the problem must be a sentence that names what fails and when"
    assert len(patch.problem) < 110, "the problem must fit in one line of a table"
    assert all(edit.old.count("\n") == edit.new.count("\n") for edit in patch.edits), "edits must keep the line count"


def test_table_contains_every_patch_once() -> None:
    defined = {
        id(value)
        for module in iter_modules(compat.__path__)
        if module.name not in ("__main__", "replacements")  # torch may not be installed
        for value in vars(import_module(f"{compat.__name__}.{module.name}")).get("PATCHES", ())
    }
    assert defined == {id(patch) for patch in compat.PATCHES}
    assert len({patch.name for patch in compat.PATCHES}) == len(compat.PATCHES)


def create_fake_mmf(root: Path, **modules: str) -> tuple[Path, str]:
    """Create a package ``mmf`` with these modules, and return its folder and version."""
    (root / "mmf").mkdir(parents=True)
    (root / "mmf" / "__init__.py").write_text("", encoding="utf-8")
    for name, text in modules.items():
        (root / "mmf" / f"{name}.py").write_text(text, encoding="utf-8")
    return root, "1.0.0rc10"


@pytest.mark.parametrize(
    ("source", "mmf_versions", "is_needed", "is_active"),
    [
        ("some old text", RC10, lambda: True, True),
        ("text of the user", RC10, lambda: True, False),
        (None, RC10, lambda: True, False),
        ("some old text", RC12, lambda: True, False),
        ("some old text", RC10, source_lacks("json.decoder", "class JSONDecoder"), False),
        ("some old text", RC10, source_lacks("json.decoder", "class NoSuchThing"), True),
    ],
)
def test_patch_is_active_if_mmf_version_source_and_libraries_need_it(
    tmp_path: Path, source: str | None, mmf_versions: frozenset[str], is_needed: Callable[[], bool], is_active: bool
) -> None:
    patch = Patch("", "", mmf_versions, "", edits=(Edit("mmf.work", "old text", "new text"),), is_needed=is_needed)
    modules = {} if source is None else {"work": source}
    assert patch.is_active(*create_fake_mmf(tmp_path, **modules)) == is_active


class TestInstall:
    def test_rejects_imported_mmf(self, tmp_path: Path) -> None:
        """Run in a separate process, whose sys.path and modules may change."""
        create_fake_mmf(tmp_path, version='__version__ = "1.0.0rc10"\n')
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
        process = subprocess.run(
            [sys.executable, "-c", "\n".join(lines)],
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
        )
        assert "before mmf is imported" in process.stdout

    def test_list_contains_all_patches_and_changes_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path, meta_path = list(sys.path), list(sys.meta_path)
        root, version = create_fake_mmf(tmp_path, version="")
        list_patches(str(root), version)
        assert [patch["name"] for patch in json.loads(capsys.readouterr().out)] == [p.name for p in compat.PATCHES]
        assert (sys.path, sys.meta_path) == (path, meta_path)


def test_bert_is_recognized_by_its_config_file_or_else_by_its_name(user_dir: Path) -> None:
    for kind in ("bert", "roberta"):
        (user_dir / "config.json").write_text(f'{{"model_type": "{kind}"}}', encoding="utf-8")
        assert mmf_models.is_bert(str(user_dir)) == mmf_models.is_bert(f"{kind}-base") == (kind == "bert")


def test_url_is_not_a_text_link() -> None:
    assert omegaconf.resolve_text_link("https://example.org/a.yaml") == "https://example.org/a.yaml"


def test_torch_with_other_import_of_the_compiler_is_not_edited() -> None:
    [edit] = [edit for edit in lazy_imports.PATCHES[0].edits if edit.module == "torch._compile"]
    torch_2_1_source = "        def inner():\n            import torch._dynamo\n\n            return 1\n"
    assert edit.old not in torch_2_1_source


def test_undecodable_image_name_is_reported_as_damaged_features_record() -> None:
    class Reader:
        db_path = "features"

        def _load(self, image_file_path: str) -> bytes:
            return image_file_path.encode()

    module: Any = ModuleType("readers")
    module.LMDBFeatureReader = Reader
    mmf_data._restrict_lmdb_loader(module)
    with pytest.raises(DamagedFeaturesError, match="features: damaged: record "):
        Reader()._load("\udc80.npy")
