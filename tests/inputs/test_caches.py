"""Where a BERT is found that somebody has brought."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.inputs.caches import model_in
from tests.worlds.memes import lay_out

FILES = {"config.json": b"{}", "vocab.txt": b"[PAD]", "pytorch_model.bin": b"weights"}
SNAPSHOT = "hub/models--owner--tiny/snapshots/1234"


@pytest.mark.parametrize(
    ("laid_out", "named"),
    [
        ("tiny", ""),
        ("tiny", "tiny"),
        ("owner/tiny", ""),
        (SNAPSHOT, ""),
        (SNAPSHOT, "hub"),
        (SNAPSHOT, "hub/models--owner--tiny"),
        (SNAPSHOT, "hub/models--owner--tiny/snapshots/1234"),
    ],
)
def test_a_model_is_found_whatever_folder_of_its_copy_is_named(
    user_dir: Path, laid_out: str, named: str
) -> None:
    lay_out({f"{laid_out}/{name}": content for name, content in FILES.items()}, user_dir)
    assert model_in(user_dir / named, "owner/tiny", weights=True) == user_dir / laid_out
    assert model_in(user_dir / named, "owner/other", weights=True) is None
