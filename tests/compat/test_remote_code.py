"""Code in a model's folder, which transformers runs only if the user trusts it."""

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
    pytest.mark.skipif(
        not _finds_new_modules(), reason="this Windows Python cannot import files that transformers copies"
    ),
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
def test_code_in_model_folder_runs_only_if_trusted(tmp_path: Path, name: str, trusted: bool) -> None:
    folder, marker = tmp_path / "модель", tmp_path / "ran"
    folder.mkdir()
    auto_class = ["user_code.UserClass", None] if name == "AutoTokenizer" else "user_code.UserClass"
    config = {"model_type": "bert", "auto_map": {name: auto_class}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", encoding="utf-8")
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\nclass UserClass: pass\n"
    (folder / "user_code.py").write_text(code, encoding="utf-8")
    process = subprocess.run(
        [sys.executable, "-c", LOAD, name, str(folder), str(int(trusted))],
        cwd=ROOT,
        env=os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
    )
    assert marker.exists() == trusted, process.stderr
    error = f"{DataError.__module__}.DataError: "
    assert (error in process.stderr) == (not trusted), process.stderr
    assert ("comes with a model was not run (UserClass)" in process.stderr) == (not trusted)
