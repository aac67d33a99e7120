"""The demo's BERT is one that transformers loads, and fits the demo's preset."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmf_win.runs import presets

pytestmark = pytest.mark.torch


def vilbert() -> dict[str, Any]:
    model: dict[str, Any] = presets.load("demo").settings["model_config"]["vilbert"]
    return model


def test_the_preset_has_the_sizes_of_the_bert(user_dir: Path) -> None:
    from mmf_win.demo.tiny_bert import write_bert

    write_bert(user_dir / "bert-demo", ["love"], seed=1)
    config = json.loads((user_dir / "bert-demo" / "config.json").read_text(encoding="utf-8"))
    for name in (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    ):
        assert vilbert()[name] == config[name], name


_BERT_OF_TRANSFORMERS = """
import json, sys
from mmf_win.worker import compat
from mmf_win.upstream.install import find
mmf = find()
compat.install(mmf.root, mmf.version)
from transformers import AutoTokenizer, BertConfig, BertModel
model = BertModel(BertConfig.from_pretrained(sys.argv[1]))
shapes = {name: list(weight.shape) for name, weight in model.named_parameters()}
tokens = AutoTokenizer.from_pretrained(sys.argv[1], do_lower_case=True).tokenize("LOVE and peace")
print(json.dumps([shapes, tokens]))
"""


def test_transformers_knows_every_weight_and_word_of_it(user_dir: Path) -> None:
    from safetensors.numpy import load_file

    from mmf_win.demo.tiny_bert import write_bert

    folder = user_dir / "bert-demo"
    write_bert(folder, ["love", "peace"], seed=1)
    # In a process of its own, since the patches change it.
    answer = subprocess.check_output([sys.executable, "-c", _BERT_OF_TRANSFORMERS, str(folder)], text=True)
    shapes, tokens = json.loads(answer.splitlines()[-1])
    weights = load_file(folder / "model.safetensors")
    assert {name: list(weight.shape) for name, weight in weights.items()} == shapes
    assert tokens == ["love", "[UNK]", "peace"]


def test_the_vocabulary_holds_the_words_and_the_seed_decides_the_weights(user_dir: Path) -> None:
    from mmf_win.demo.synthetic import vocabulary
    from mmf_win.demo.tiny_bert import VOCABULARY, write_bert

    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        write_bert(user_dir / name, vocabulary(), seed)
    words = (user_dir / "one" / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert len(words) == VOCABULARY
    assert words[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert set(vocabulary()) < set(words)
    weights = {
        name: (user_dir / name / "model.safetensors").read_bytes() for name in ("one", "again", "other")
    }
    assert weights["one"] == weights["again"] != weights["other"]


def test_too_many_words_are_refused(tmp_path: Path) -> None:
    from mmf_win.demo.tiny_bert import write_bert

    with pytest.raises(ValueError, match="do not fit"):
        write_bert(tmp_path / "bert-demo", [f"word{n}" for n in range(60)], seed=1)
    assert list(tmp_path.iterdir()) == []
