"""What replaces packages that are gone."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the stand-ins are made of torch")
pytestmark = pytest.mark.torch

from mmf_win.errors import DatasetError  # noqa: E402
from mmf_win.worker.compat.stand_ins import AdamW, pretrained_aliases  # noqa: E402
from mmf_win.worker.compat.transformers import PATCHES  # noqa: E402


def numbers(first: int, dim: int) -> str:
    """So many numbers, counted up."""
    return " ".join(str(first + n) for n in range(dim))


def test_words_of_glove_may_hold_blanks(tmp_path: Path) -> None:
    lines = [f"the {numbers(1, 25)}", f". . . {numbers(2, 25)}"]
    (tmp_path / "glove.twitter.27B.25d.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    vectors = pretrained_aliases["glove.twitter.27B.25d"](cache=str(tmp_path))

    assert vectors.itos == ["the", ". . ."]
    assert vectors.vectors[vectors.stoi[". . ."], 0] == 2


def test_fasttext_begins_with_its_size(tmp_path: Path) -> None:
    text = f"1 300\nthe {numbers(1, 300)}\n"
    (tmp_path / "wiki.en.vec").write_text(text, encoding="utf-8")

    vectors = pretrained_aliases["fasttext.en.300d"](cache=str(tmp_path))

    assert vectors.itos == ["the"]
    assert vectors.vectors.shape == (1, 300)


def test_a_line_that_was_cut_short_is_named(tmp_path: Path) -> None:
    text = f"the {numbers(1, 25)}\nof 1 2\n"
    (tmp_path / "glove.twitter.27B.25d.txt").write_text(text, encoding="utf-8")

    with pytest.raises(DatasetError, match="line 2"):
        pretrained_aliases["glove.twitter.27B.25d"](cache=str(tmp_path))


def test_modules_of_transformers_are_found_by_their_old_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    give_old_names = next(patch for patch in PATCHES if patch.name == "transformers-names").before_import
    assert give_old_names is not None
    give_old_names()
    for old in ("modeling_bert", "tokenization_auto", "modeling_roberta"):
        assert find_spec(f"transformers.{old}") is not None
    assert find_spec("transformers.modeling_nothing") is None
    name = "models.gpt_neo.configuration_gpt_neo"
    assert import_module("transformers.configuration_gpt_neo").__name__ == f"transformers.{name}"


def test_adamw_refuses_what_it_cannot_do() -> None:
    import torch

    with pytest.raises(ValueError, match="correct_bias"):
        AdamW([torch.zeros(1, requires_grad=True)], correct_bias=False)
