"""Writes a tiny BERT with random weights, in the layout of a model from the Hugging Face Hub.

It installs the patches, and so belongs into a process that ends soon after.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmf_win.files import write_bytes
from mmf_win.upstream.install import find_mmf
from mmf_win.worker import compat

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_bert(folder: Path, words: Sequence[str], seed: int, **sizes: int) -> None:
    """Write config.json, model.safetensors and, when these are complete, vocab.txt into a folder.

    It is made if need be. The tokenizer knows the words, in lower case; ``vocab_size`` has room for them and
    five more. The seed is that of the weights; sizes are called as by :class:`transformers.BertConfig`.
    """
    compat.install(find_mmf().root)  # torchvision may have been built for another torch
    import torch
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(seed)
    folder.parent.mkdir(parents=True, exist_ok=True)  # names a file in its place on every system
    folder.mkdir(exist_ok=True)
    BertForPreTraining(BertConfig(**sizes)).save_pretrained(folder)
    write_bytes(folder / "vocab.txt", "\n".join((*_SPECIAL, *words, "")).encode())
