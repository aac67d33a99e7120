"""Writes a tiny BERT with random weights, in the layout of a model from the Hugging Face hub."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from mmf_win.files import rename, write_json

HIDDEN = 64
HEADS = 4
INTERMEDIATE = 128
POSITIONS = 32
VOCABULARY = 64

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
        tensors = {name: weight.astype(np.float32) for name, weight in _weights(random).items()}
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
        "num_hidden_layers": 1,
        "type_vocab_size": 2,
        "vocab_size": VOCABULARY,
    }


def _weights(random: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
    """Every weight of ``transformers.BertModel``, as BERT initialises itself.

    That is: N(0, 0.02), with ones for LayerNorm and zeros for biases.
    """
    layer = "encoder.layer.0"
    linear = {
        **{f"{layer}.attention.self.{part}": (HIDDEN, HIDDEN) for part in ("query", "key", "value")},
        f"{layer}.attention.output.dense": (HIDDEN, HIDDEN),
        f"{layer}.intermediate.dense": (INTERMEDIATE, HIDDEN),
        f"{layer}.output.dense": (HIDDEN, INTERMEDIATE),
        "pooler.dense": (HIDDEN, HIDDEN),
    }
    drawn = {
        "embeddings.word_embeddings": (VOCABULARY, HIDDEN),
        "embeddings.position_embeddings": (POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings": (2, HIDDEN),
        **linear,
    }
    norms = [f"{part}.LayerNorm" for part in ("embeddings", f"{layer}.attention.output", f"{layer}.output")]
    return {
        **{f"{name}.weight": random.normal(0, 0.02, shape) for name, shape in drawn.items()},
        **{f"{name}.bias": np.zeros(outputs) for name, (outputs, _) in linear.items()},
        **{f"{name}.weight": np.ones(HIDDEN) for name in norms},
        **{f"{name}.bias": np.zeros(HIDDEN) for name in norms},
    }
