"""What MMF imports instead of packages that are gone or were never needed.

:class:`AdamW` is for ``transformers.optimization``, and Lightning's two classes for ``pytorch_lightning``.

The rest is for ``torchtext.vocab``, as far as ``mmf.utils.vocab`` needs it: torchtext ended with torch 2.3,
and it downloads 2 GB without asking. The files are those that torchtext would leave: one word and its numbers
a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mmf_win import console
from mmf_win.errors import DatasetError

_DIMENSIONS = {"42B": (300,), "840B": (300,), "twitter.27B": (25, 50, 100, 200), "6B": (50, 100, 200, 300)}


class AdamW(torch.optim.AdamW):
    """Adam with decoupled weight decay (arXiv:1711.05101), with the defaults MMF was written for.

    MMF's configurations were tuned without weight decay and with eps 1e-6. torch's optimizer of the same name
    decays by 0.01 by default.

    Args:
        params: parameters, or groups of them.
        lr: step size.
        betas: decay rates of the two running averages.
        eps: added to the denominator.
        weight_decay: per step, times ``lr``.
        correct_bias: transformers' option; only True is to be had.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        if not correct_bias:
            raise ValueError("AdamW without bias correction is not available; leave correct_bias out")
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class LightningModule(torch.nn.Module):
    """A plain module; MMF's models use nothing else of Lightning's unless Lightning trains them."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called by Lightning's trainer only."""


class LightningDataModule:
    """MMF's dataset builders inherit it to be usable by Lightning's trainer."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()


class Vectors(NamedTuple):
    """Word vectors in torchtext's terms.

    Attributes:
        itos: the words, in the file's order.
        stoi: the row of each word.
        vectors: float32, one row a word.
    """

    itos: list[str]
    stoi: dict[str, int]
    vectors: torch.Tensor


def GloVe(name: str = "840B", dim: int = 300, *, cache: str) -> Vectors:
    """GloVe vectors (https://nlp.stanford.edu/projects/glove/) from ``<cache>/glove.<name>.<dim>d.txt``.

    Raises:
        DatasetError: the file is missing or damaged.
    """
    return read_vectors(Path(cache, f"glove.{name}.{dim}d.txt"))


def FastText(language: str = "en", *, cache: str) -> Vectors:
    """fastText vectors (https://fasttext.cc) from ``<cache>/wiki.<language>.vec``.

    Raises:
        DatasetError: the file is missing or damaged.
    """
    return read_vectors(Path(cache, f"wiki.{language}.vec"))


pretrained_aliases: Mapping[str, Callable[..., Vectors]] = {
    f"glove.{name}.{dim}d": partial(GloVe, name, dim) for name, dims in _DIMENSIONS.items() for dim in dims
} | {"fasttext.en.300d": partial(FastText, "en"), "fasttext.simple.300d": partial(FastText, "simple")}


@lru_cache(maxsize=1)  # MMF asks for the same file twice in a row
def read_vectors(path: Path) -> Vectors:
    """Word vectors from a text file.

    Raises:
        DatasetError: the file is missing or damaged.
    """
    if not path.is_file():
        raise DatasetError(
            f"The word vectors are missing: {path}",
            hint="Download glove.6B.zip from https://nlp.stanford.edu/projects/glove/ and unpack "
            "glove.6B.300d.txt into that folder, or use a BERT model, which needs none.",
        )
    words: list[str] = []
    rows: list[np.ndarray] = []
    with (
        console.Progress(f"reading {path.name}", path.stat().st_size) as progress,
        path.open("rb") as file,
    ):
        for number, line in enumerate(file, 1):
            progress.advance(len(line))
            word, _, numbers = line.rstrip().partition(b" ")
            row = np.array(numbers.split(), dtype=np.float32) if numbers else np.empty(0, np.float32)
            if row.size == 1 and number == 1:
                continue  # fastText's first line is the file's size
            if not row.size or (rows and row.size != rows[0].size):
                raise DatasetError(
                    f"{path}, line {number}: {row.size} numbers after the word "
                    f"instead of {rows[0].size if rows else 'some'}.",
                    hint="The file is cut short or damaged; unpack it again.",
                )
            words.append(word.decode("utf-8", "replace"))
            rows.append(row)
    if not rows:
        raise DatasetError(f"{path} is empty.", hint="Unpack it again.")
    rows_of = {word: row for row, word in enumerate(words)}
    return Vectors(words, rows_of, torch.from_numpy(np.stack(rows)))
