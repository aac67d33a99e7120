"""Tiny BERT and CLIP models with random weights, written in the layout of Hugging Face models.

The functions install the patches, so call them in a process that ends soon after.
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
_INIT_FACTOR = 4  # CLIP's default would make signals vanish in such narrow layers


def write_bert(folder: Path, words: Sequence[str], seed: int, **sizes: int) -> None:
    """Write config.json, model.safetensors and finally vocab.txt, and create the folder if necessary.

    Args:
        folder: The folder of the model.
        words: Words that the tokenizer knows, in lower case.
        seed: Seed of the weights.
        sizes: Arguments of :class:`transformers.BertConfig`. ``vocab_size`` is at least the words + 5.
    """
    _prepare(folder, seed)
    from transformers import BertConfig, BertForPreTraining

    BertForPreTraining(BertConfig(**sizes)).save_pretrained(folder)
    write_bytes(folder / "vocab.txt", "\n".join((*_SPECIAL_TOKENS, *words, "")).encode())


def write_clip(
    folder: Path, words: Sequence[str], seed: int, text: Mapping[str, int], vision: Mapping[str, int]
) -> None:
    """Write config.json, model.safetensors and finally the tokenizer, and create the folder if necessary.

    Args:
        folder: The folder of the model.
        words: Words that become single tokens, in lower case; other words are split.
        seed: Seed of the weights.
        text: Arguments of :class:`transformers.CLIPTextConfig`.
        vision: Arguments of :class:`transformers.CLIPVisionConfig`.
    """
    _prepare(folder, seed)
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizerFast
    from transformers.models.clip.tokenization_clip import bytes_to_unicode

    letters = bytes_to_unicode()
    spelled_words = ["".join(letters[byte] for byte in word.encode()) for word in words]
    # All prefixes of each word; </w> marks the end of a word.
    prefixes = [list(accumulate([*word[:-1], f"{word[-1]}</w>"])) for word in spelled_words]
    merges = dict.fromkeys(
        (prefix, longer.removeprefix(prefix))
        for word_prefixes in prefixes
        for prefix, longer in pairwise(word_prefixes)
    )
    vocabulary_tokens = [*letters.values(), *(f"{letter}</w>" for letter in letters.values()), *map("".join, merges)]
    tokens = [*dict.fromkeys(vocabulary_tokens), _START_TOKEN, _END_TOKEN]
    ids = {"bos_token_id": len(tokens) - 2, "eos_token_id": len(tokens) - 1, "pad_token_id": len(tokens) - 1}
    text_config: dict[str, Any] = {**text, **ids, "vocab_size": len(tokens), "initializer_factor": _INIT_FACTOR}
    config = CLIPConfig(text_config, {**vision, "initializer_factor": _INIT_FACTOR}, initializer_factor=_INIT_FACTOR)
    CLIPModel(config).save_pretrained(folder)
    vocabulary, rules = folder / "vocab.json", folder / "merges.txt"
    write_bytes(vocabulary, json_bytes({token: number for number, token in enumerate(tokens)}))
    write_bytes(rules, "\n".join(["#version: 0.2", *map(" ".join, merges), ""]).encode())
    CLIPTokenizerFast(str(vocabulary), str(rules), pad_token=_END_TOKEN).save_pretrained(folder)


def _prepare(folder: Path, seed: int) -> None:
    """Create the folder, apply the patches and seed torch."""
    compat.install(find_mmf().root)  # torchvision may have been built for another torch
    import torch

    torch.manual_seed(seed)
    folder.parent.mkdir(parents=True, exist_ok=True)  # raises the same error on every system if a file is in its place
    folder.mkdir(exist_ok=True)
