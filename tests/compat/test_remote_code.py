"""Code that comes with a model is run only where that is allowed: by transformers' own classes."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from mmf_win.errors import DataError
from tests.worlds.tools import mark_wide


def _finds_new_modules() -> bool:
    """Return whether this Python imports files written while it runs; some releases of 3.11 fail."""
    try:
        importlib.invalidate_caches()
    except TypeError:
        return False
    return True


pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not _finds_new_modules(), reason="this Windows Python cannot import what transformers copies"),
]
ROOT = Path(__file__).parents[2]
LOAD = """
import sys
from mmf_win.compat.patch import install_finder
from mmf_win.compat.transformers import forbid_remote_code
install_finder()
name, folder, trusted = sys.argv[1:]
if not int(trusted):
    forbid_remote_code()
import transformers
getattr(transformers, name).from_pretrained(folder, trust_remote_code=True)
"""


@pytest.mark.parametrize(
    ("name", "trusted"),
    mark_wide(
        product(["AutoConfig", "AutoModel", "AutoTokenizer"], [False, True]),
        except_for=[("AutoModel", False), ("AutoTokenizer", True)],
    ),
)
def test_code_in_a_models_folder_runs_only_where_it_is_trusted(tmp_path: Path, name: str, trusted: bool) -> None:
    folder, marker = tmp_path / "модель", tmp_path / "ran"
    folder.mkdir()
    own = ["own.Own", None] if name == "AutoTokenizer" else "own.Own"
    config = {"model_type": "bert", "auto_map": {name: own}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", encoding="utf-8")
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\nclass Own: pass\n"
    (folder / "own.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, name, str(folder), str(int(trusted))],
        cwd=ROOT,
        env=os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
    )
    assert marker.exists() == trusted, done.stderr
    refused = f"{DataError.__module__}.DataError: "
    assert (refused in done.stderr) == (not trusted), done.stderr
    assert ("comes with a model was not run (Own)" in done.stderr) == (not trusted)
