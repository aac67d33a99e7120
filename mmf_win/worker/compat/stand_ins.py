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
        correct_bias: transformers' option; only True is to be had.
        options: those of torch's.
    """

    def __init__(self, params: Iterable[Any], *, correct_bias: bool = True, **options: Any) -> None:
        if not correct_bias:
            raise ValueError("AdamW without bias correction is not available; leave correct_bias out")
        super().__init__(params, **{"eps": 1e-6, "weight_decay": 0.0, **options})


LightningModule = torch.nn.Module
"""MMF's models use nothing else of Lightning's unless Lightning trains them."""


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
    return read_vectors(Path(cache, f"glove.{name}.{dim}d.txt"), dim)


def FastText(language: str = "en", *, cache: str) -> Vectors:
    """fastText vectors (https://fasttext.cc) from ``<cache>/wiki.<language>.vec``.

    Raises:
        DatasetError: the file is missing or damaged.
    """
    return read_vectors(Path(cache, f"wiki.{language}.vec"), 300)


pretrained_aliases: Mapping[str, Callable[..., Vectors]] = {
    f"glove.{name}.{dim}d": partial(GloVe, name, dim) for name, dims in _DIMENSIONS.items() for dim in dims
} | {"fasttext.en.300d": partial(FastText, "en"), "fasttext.simple.300d": partial(FastText, "simple")}


@lru_cache(maxsize=1)  # MMF asks for the same file twice in a row
def read_vectors(path: Path, dim: int) -> Vectors:
    """Word vectors of ``dim`` numbers from a text file.

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
            word, *numbers = line.rstrip().rsplit(b" ", dim)  # some words hold spaces
            if len(numbers) == 1 and number == 1:
                continue  # fastText's first line is the file's size
            if len(numbers) != dim:
                raise DatasetError(
                    f"{path}, line {number}: {len(numbers)} numbers after the word instead of {dim}.",
                    hint="The file is cut short or damaged; unpack it again.",
                )
            words.append(word.decode("utf-8", "replace"))
            rows.append(np.array(numbers, dtype=np.float32))
    if not rows:
        raise DatasetError(f"{path} is empty.", hint="Unpack it again.")
    rows_of = {word: row for row, word in enumerate(words)}
    return Vectors(words, rows_of, torch.from_numpy(np.stack(rows)))
