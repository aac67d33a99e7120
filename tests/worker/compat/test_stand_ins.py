"""What replaces packages that are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the stand-ins are made of torch")
pytestmark = pytest.mark.torch

from mmf_win.errors import DatasetError  # noqa: E402
from mmf_win.worker.compat.stand_ins import AdamW, pretrained_aliases  # noqa: E402


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


def test_adamw_refuses_what_it_cannot_do() -> None:
    import torch

    with pytest.raises(ValueError, match="correct_bias"):
        AdamW([torch.zeros(1, requires_grad=True)], correct_bias=False)
