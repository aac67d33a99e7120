"""Replacements for packages that MMF imports and that are discontinued or not needed.

:class:`AdamW` replaces the one of ``transformers.optimization``, and the two Lightning classes those of
``pytorch_lightning``.

The rest replaces the parts of ``torchtext.vocab`` that ``mmf.utils.vocab`` needs for GloVe: torchtext was
discontinued with torch 2.3, and it downloads 2 GB without asking.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mmf_win.errors import DatasetError

_GLOVE_DIMENSIONS = {"42B": (300,), "840B": (300,), "twitter.27B": (25, 50, 100, 200), "6B": (50, 100, 200, 300)}


class AdamW(torch.optim.AdamW):
    """Adam with decoupled weight decay (arXiv:1711.05101) and the defaults that MMF expects.

    MMF's configurations were tuned without weight decay and with eps 1e-6. The default weight decay of
    ``torch.optim.AdamW`` is 0.01.
    """

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        super().__init__(params, **{"eps": 1e-6, "weight_decay": 0.0, **options})


LightningModule = torch.nn.Module
#: MMF's models and dataset builders use nothing else of Lightning unless Lightning trains them.
LightningDataModule = object


@lru_cache(maxsize=1)  # MMF loads the same file twice in a row
def load_glove(name: str, dim: int, *, cache: str) -> SimpleNamespace:
    """Load GloVe vectors (https://nlp.stanford.edu/projects/glove/).

    Args:
        name: Name of the training corpus, such as ``6B``.
        dim: Size of the vectors.
        cache: Folder with the file ``glove.<name>.<dim>d.txt``.

    Returns:
        An object with torchtext's attributes ``itos`` (words), ``stoi`` (word → row) and ``vectors``
        (float32 [words, dim]).

    Raises:
        DatasetError: The file is damaged.
    """
    path = Path(cache, f"glove.{name}.{dim}d.txt")
    rows: dict[str, np.ndarray] = {}
    try:
        with path.open("rb") as file:
            for line in file:
                word, *numbers = line.rstrip().rsplit(b" ", dim)  # some words contain spaces
                rows[word.decode("utf-8", "replace")] = np.array(numbers, dtype=np.float32)
        vectors = torch.from_numpy(np.stack(list(rows.values())))
    except ValueError as error:  # an invalid number, a line of another length, or an empty file
        raise DatasetError(f"{path}: damaged: {error}", hint="unpack the file again") from error
    words = list(rows)
    return SimpleNamespace(itos=words, stoi={word: row for row, word in enumerate(words)}, vectors=vectors)


_GLOVE_VARIANTS = ((name, dim) for name, dims in _GLOVE_DIMENSIONS.items() for dim in dims)
pretrained_aliases = {f"glove.{name}.{dim}d": partial(load_glove, name, dim) for name, dim in _GLOVE_VARIANTS}
GloVe = load_glove  # torchtext's name
