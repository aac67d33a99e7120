"""Writes a tiny BERT with random weights, in the layout of a model from the Hugging Face Hub.

It installs the patches, and so belongs into a process that ends soon after.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from mmf_win.files import rename
from mmf_win.upstream.install import find
from mmf_win.worker import compat

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_bert(folder: Path, words: Sequence[str], seed: int, **sizes: int) -> None:
    """Write ``folder`` with config.json, vocab.txt and model.safetensors. It is complete or absent.

    Args:
        folder: made by this; must not exist.
        words: what the tokenizer knows, in lower case; ``vocab_size`` has room for them and five more.
        seed: of the weights.
        sizes: as :class:`transformers.BertConfig` calls them.
    """
    mmf = find()
    compat.install(mmf.root, mmf.version)  # torchvision may have been built for another torch
    import torch
    from transformers import BertConfig, BertForPreTraining

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".mmfw-") as staging:
        made = Path(staging, folder.name)
        torch.manual_seed(seed)
        BertForPreTraining(BertConfig(**sizes)).save_pretrained(made)
        vocabulary = "\n".join((*_SPECIAL, *words)) + "\n"
        made.joinpath("vocab.txt").write_text(vocabulary, encoding="utf-8", newline="\n")
        rename(made, folder)
