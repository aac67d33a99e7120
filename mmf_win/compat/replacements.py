"""What MMF imports instead of packages that are gone or were never needed.

:class:`AdamW` is for ``transformers.optimization``, and Lightning's two classes for ``pytorch_lightning``.

The rest is for ``torchtext.vocab``, as far as ``mmf.utils.vocab`` needs it for GloVe: torchtext ended with
torch 2.3, and it downloads 2 GB without asking.
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

_GLOVE_DIMENSIONS = {
    "42B": (300,),
    "840B": (300,),
    "twitter.27B": (25, 50, 100, 200),
    "6B": (50, 100, 200, 300),
}


class AdamW(torch.optim.AdamW):
    """Adam with decoupled weight decay (arXiv:1711.05101), with the defaults MMF was written for.

    MMF's configurations were tuned without weight decay and with eps 1e-6. torch's optimizer of the same name
    decays by 0.01 by default.
    """

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        super().__init__(params, **{"eps": 1e-6, "weight_decay": 0.0, **options})


LightningModule = torch.nn.Module
#: MMF's models and dataset builders use nothing else of Lightning's unless Lightning trains them.
LightningDataModule = object


@lru_cache(maxsize=1)  # MMF asks for the same file twice in a row
def GloVe(name: str, dim: int, *, cache: str) -> SimpleNamespace:
    """GloVe vectors (https://nlp.stanford.edu/projects/glove/) from ``<cache>/glove.<name>.<dim>d.txt``.

    In torchtext's terms, they have ``itos``: the words; ``stoi``: the row of each; ``vectors``: the rows.
    Raises DatasetError where the file is damaged.
    """
    path = Path(cache, f"glove.{name}.{dim}d.txt")
    rows: dict[str, np.ndarray] = {}
    try:
        with path.open("rb") as file:
            for line in file:
                word, *numbers = line.rstrip().rsplit(b" ", dim)  # some words hold spaces
                rows[word.decode("utf-8", "replace")] = np.array(numbers, dtype=np.float32)
        vectors = torch.from_numpy(np.stack(list(rows.values())))
    except ValueError as error:  # not a number, not as many as in other lines, no line at all
        raise DatasetError(f"{path} is damaged: {error}", hint="unpack it again") from error
    words = list(rows)
    return SimpleNamespace(itos=words, stoi={word: row for row, word in enumerate(words)}, vectors=vectors)


_GLOVE_VARIANTS = ((name, dim) for name, dims in _GLOVE_DIMENSIONS.items() for dim in dims)
pretrained_aliases = {f"glove.{name}.{dim}d": partial(GloVe, name, dim) for name, dim in _GLOVE_VARIANTS}
