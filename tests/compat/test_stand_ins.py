"""Replacements of packages that no longer exist."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from mmf_win.compat.transformers import PATCHES
from mmf_win.errors import DatasetError
from tests.worlds.tools import LazyModule, requires_package

stand_ins = LazyModule("mmf_win.compat.replacements")

pytestmark = [pytest.mark.torch, requires_package("torch")]


def numbers(first: int, dim: int) -> str:
    """So many numbers, counted up."""
    return " ".join(str(first + n) for n in range(dim))


def test_words_of_glove_may_hold_blanks(tmp_path: Path) -> None:
    lines = [f"the {numbers(1, 25)}", f". . . {numbers(2, 25)}"]
    (tmp_path / "glove.twitter.27B.25d.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    vectors = stand_ins.pretrained_aliases["glove.twitter.27B.25d"](cache=str(tmp_path))

    assert vectors.itos == ["the", ". . ."]
    assert vectors.vectors[vectors.stoi[". . ."], 0] == 2


@pytest.mark.parametrize("last", ["of 1 2", f"of {numbers(1, 24)} two", None], ids=["short", "word", "empty"])
def test_damaged_word_vectors_are_named(tmp_path: Path, last: str | None) -> None:
    name = "glove.twitter.27B.25d"
    text = f"the {numbers(1, 25)}\n{last}\n" if last else ""
    (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    with pytest.raises(DatasetError, match=name):
        stand_ins.pretrained_aliases[name](cache=str(tmp_path))


def test_modules_of_transformers_are_found_by_their_old_names(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module("torch")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    (changes,) = (patch.after_import for patch in PATCHES if patch.name == "transformers-names")
    changes["transformers"](import_module("transformers"))
    for old in ("modeling_bert", "tokenization_auto", "modeling_roberta"):
        assert find_spec(f"transformers.{old}") is not None
    assert find_spec("transformers.modeling_nothing") is None
    name = "models.gpt_neo.configuration_gpt_neo"
    assert import_module("transformers.configuration_gpt_neo").__name__ == f"transformers.{name}"
