"""Writes a tiny BERT or CLIP with random weights, in the layout of a model from the Hugging Face Hub.

It installs the patches, and so belongs into a process that ends soon after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from mmf_win import compat
from mmf_win.files import json_bytes, write_bytes
from mmf_win.upstream.install import find_mmf

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_START_TOKEN, _END_TOKEN = "<|startoftext|>", "<|endoftext|>"
_INITIALIZER_FACTOR = 4  # in layers as narrow as these, a signal would fade behind CLIP's own initial weights


def write_bert(folder: Path, words: Sequence[str], seed: int, **sizes: int) -> None:
    """Write config.json, model.safetensors and, when these are complete, vocab.txt into a folder.

    It is made if need be. The tokenizer knows the words, in lower case; ``vocab_size`` has room for them and
    five more. The seed is that of the weights; sizes are called as by :class:`transformers.BertConfig`.
    """
    _prepare(folder, seed)
    from transformers import BertConfig, BertForPreTraining

    BertForPreTraining(BertConfig(**sizes)).save_pretrained(folder)
    write_bytes(folder / "vocab.txt", "\n".join((*_SPECIAL_TOKENS, *words, "")).encode())


def write_clip(
    folder: Path, words: Sequence[str], seed: int, text: Mapping[str, int], vision: Mapping[str, int]
) -> None:
    """Write config.json, model.safetensors and, when these are complete, the tokenizer's files into a folder.

    It is made if need be. The words are tokens, in lower case, and letters are those of all others; sizes are
    called as by :class:`transformers.CLIPTextConfig` and :class:`transformers.CLIPVisionConfig`.
    """
    _prepare(folder, seed)
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizerFast
    from transformers.models.clip.tokenization_clip import bytes_to_unicode

    letters = bytes_to_unicode()
    spelt = ["".join(letters[byte] for byte in word.encode()) for word in words]
    # Each word grows from its first letter to its end, which </w> marks.
    grown = [list(accumulate([*word[:-1], f"{word[-1]}</w>"])) for word in spelt]
    merges = dict.fromkeys(
        (begun, longer.removeprefix(begun)) for each in grown for begun, longer in pairwise(each)
    )
    known = [
        *letters.values(),
        *(f"{letter}</w>" for letter in letters.values()),
        *("".join(pair) for pair in merges),
    ]
    tokens = [*dict.fromkeys(known), _START_TOKEN, _END_TOKEN]
    ids = {"bos_token_id": len(tokens) - 2, "eos_token_id": len(tokens) - 1, "pad_token_id": len(tokens) - 1}
    of_text: dict[str, Any] = {
        **text,
        **ids,
        "vocab_size": len(tokens),
        "initializer_factor": _INITIALIZER_FACTOR,
    }
    config = CLIPConfig(
        of_text, {**vision, "initializer_factor": _INITIALIZER_FACTOR}, initializer_factor=_INITIALIZER_FACTOR
    )
    CLIPModel(config).save_pretrained(folder)
    vocabulary, rules = folder / "vocab.json", folder / "merges.txt"
    write_bytes(vocabulary, json_bytes({token: number for number, token in enumerate(tokens)}))
    write_bytes(rules, "\n".join(["#version: 0.2", *map(" ".join, merges), ""]).encode())
    CLIPTokenizerFast(str(vocabulary), str(rules), pad_token=_END_TOKEN).save_pretrained(folder)


def _prepare(folder: Path, seed: int) -> None:
    """Make the folder, and make the weights depend on the seed alone."""
    compat.install(find_mmf().root)  # torchvision may have been built for another torch
    import torch

    torch.manual_seed(seed)
    folder.parent.mkdir(parents=True, exist_ok=True)  # names a file in its place on every system
    folder.mkdir(exist_ok=True)
