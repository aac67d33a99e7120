"""Replacements of discontinued packages."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from mmf_win.compat.transformers import PATCHES
from mmf_win.errors import DatasetError
from tests.worlds.tools import LazyModule, requires_package

replacements = LazyModule("mmf_win.compat.replacements")

pytestmark = [pytest.mark.torch, requires_package("torch")]


def join_numbers(first: int, dim: int) -> str:
    """Return consecutive numbers, separated by spaces."""
    return " ".join(str(first + n) for n in range(dim))


def test_words_of_glove_can_contain_spaces(tmp_path: Path) -> None:
    lines = [f"the {join_numbers(1, 25)}", f". . . {join_numbers(2, 25)}"]
    (tmp_path / "glove.twitter.27B.25d.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    vectors = replacements.pretrained_aliases["glove.twitter.27B.25d"](cache=str(tmp_path))

    assert vectors.itos == ["the", ". . ."]
    assert vectors.vectors[vectors.stoi[". . ."], 0] == 2


@pytest.mark.parametrize("last", ["of 1 2", f"of {join_numbers(1, 24)} two", None], ids=["short", "word", "empty"])
def test_damaged_word_vectors_raise_error_that_names_the_file(tmp_path: Path, last: str | None) -> None:
    name = "glove.twitter.27B.25d"
    text = f"the {join_numbers(1, 25)}\n{last}\n" if last else ""
    (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    with pytest.raises(DatasetError, match=name):
        replacements.pretrained_aliases[name](cache=str(tmp_path))


def test_transformers_modules_are_importable_by_old_names(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module("torch")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    (after_import,) = (patch.after_import for patch in PATCHES if patch.name == "transformers-names")
    after_import["transformers"](import_module("transformers"))
    for old_name in ("modeling_bert", "tokenization_auto", "modeling_roberta"):
        assert find_spec(f"transformers.{old_name}") is not None
    assert find_spec("transformers.modeling_nothing") is None
    name = "models.gpt_neo.configuration_gpt_neo"
    assert import_module("transformers.configuration_gpt_neo").__name__ == f"transformers.{name}"
