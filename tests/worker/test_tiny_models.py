"""The demo's BERT can be loaded by transformers and matches the demo's preset and captions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mmf_win.demo.synthetic import generate_memes
from mmf_win.runs import presets

pytestmark = pytest.mark.torch

# Runs in a subprocess, because the patches change the process.
_WRITE_AND_LOAD = """
import json, sys
from pathlib import Path
from mmf_win.demo.generate import BERT_SIZES
from mmf_win.worker.tiny_models import write_bert
write_bert(Path(sys.argv[1]), ["love", "peace"], 1, **BERT_SIZES)
from transformers import AutoTokenizer, BertModel
_, loaded = BertModel.from_pretrained(sys.argv[1], output_loading_info=True)
tokens = AutoTokenizer.from_pretrained(sys.argv[1], do_lower_case=True).tokenize("LOVE and peace")
print(json.dumps([loaded["missing_keys"], tokens]))
"""


@pytest.mark.wide
def test_transformers_loads_all_weights_and_words_and_the_seed_fixes_the_weights(user_dir: Path) -> None:
    for name in ("one", "again"):
        command = [sys.executable, "-c", _WRITE_AND_LOAD, str(user_dir / name)]
        output = subprocess.check_output(command, text=True)
        assert json.loads(output.splitlines()[-1]) == [[], ["love", "[UNK]", "peace"]]
    first_weights, second_weights = ((user_dir / name / "model.safetensors").read_bytes() for name in ("one", "again"))
    assert first_weights == second_weights
    assert sorted(path.name for path in user_dir.iterdir()) == ["again", "one"]


def test_sizes_match_the_preset_and_the_captions() -> None:
    from mmf_win.demo.generate import BERT_SIZES

    assert presets.load_preset("demo").settings["model_config"]["vilbert"].items() >= BERT_SIZES.items()
    vocabulary = {word for split in generate_memes(1).values() for meme in split for word in meme.text.split()}
    assert 5 + len(vocabulary) <= BERT_SIZES["vocab_size"]
