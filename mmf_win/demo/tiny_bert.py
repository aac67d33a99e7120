"""Writes a tiny BERT with random weights, in the layout of a model from the Hugging Face hub."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from mmf_win.files import rename, write_json

HIDDEN = 64
LAYERS = 1
HEADS = 4
INTERMEDIATE = 128
POSITIONS = 32
VOCABULARY = 64

_Weights = np.ndarray[Any, np.dtype[np.float32]]

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_bert(folder: Path, words: Sequence[str], seed: int) -> None:
    """Write ``folder`` with config.json, vocab.txt and model.safetensors. It is complete or absent.

    Args:
        folder: made by this; must not exist.
        words: the words that the tokenizer knows, in lower case; the vocabulary is filled up to
            :data:`VOCABULARY` entries as BERT's own is, with ``[unused0]`` and so on.
        seed: of the weights.

    Raises:
        ValueError: there are too many words.
    """
    known = [*_SPECIAL, *words]
    if len(known) > VOCABULARY:
        raise ValueError(f"{len(known)} entries do not fit into a vocabulary of {VOCABULARY}")
    known += [f"[unused{n}]" for n in range(VOCABULARY - len(known))]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".mmfw-") as staging:
        made = Path(staging, folder.name)
        made.mkdir()
        made.joinpath("vocab.txt").write_text("\n".join(known) + "\n", encoding="utf-8", newline="\n")
        write_json(made / "config.json", _config())
        random = np.random.default_rng(seed)
        tensors = {name: _initial(name, shape, random) for name, shape in _shapes()}
        save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
        rename(made, folder)


def _config() -> dict[str, object]:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "type_vocab_size": 2,
        "vocab_size": VOCABULARY,
    }


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every weight of ``transformers.BertModel``."""

    def linear(name: str, inputs: int, outputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", (outputs, inputs)
        yield f"{name}.bias", (outputs,)

    def layer_norm(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.LayerNorm.weight", (HIDDEN,)
        yield f"{name}.LayerNorm.bias", (HIDDEN,)

    yield "embeddings.word_embeddings.weight", (VOCABULARY, HIDDEN)
    yield "embeddings.position_embeddings.weight", (POSITIONS, HIDDEN)
    yield "embeddings.token_type_embeddings.weight", (2, HIDDEN)
    yield from layer_norm("embeddings")
    for n in range(LAYERS):
        layer = f"encoder.layer.{n}"
        for part in ("query", "key", "value"):
            yield from linear(f"{layer}.attention.self.{part}", HIDDEN, HIDDEN)
        yield from linear(f"{layer}.attention.output.dense", HIDDEN, HIDDEN)
        yield from layer_norm(f"{layer}.attention.output")
        yield from linear(f"{layer}.intermediate.dense", HIDDEN, INTERMEDIATE)
        yield from linear(f"{layer}.output.dense", INTERMEDIATE, HIDDEN)
        yield from layer_norm(f"{layer}.output")
    yield from linear("pooler.dense", HIDDEN, HIDDEN)


def _initial(name: str, shape: tuple[int, ...], random: np.random.Generator) -> _Weights:
    """As BERT initialises itself: N(0, 0.02), with ones for LayerNorm and zeros for biases."""
    if name.endswith(".bias"):
        return np.zeros(shape, dtype=np.float32)
    if name.endswith("LayerNorm.weight"):
        return np.ones(shape, dtype=np.float32)
    return random.normal(0, 0.02, shape).astype(np.float32)
