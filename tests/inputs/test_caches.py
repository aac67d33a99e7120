"""Where a BERT is found that somebody has brought."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mmf_win.inputs.hub import model, snapshot_of
from mmf_win.inputs.ledger import hash_in_name
from mmf_win.inputs.mirror import Mirror
from mmf_win.paths import Places
from tests.worlds.memes import lay_out

FILES = {"config.json": b"{}", "vocab.txt": b"[PAD]", "pytorch_model.bin": b"weights"}
SNAPSHOT = "hub/models--owner--tiny/snapshots/1234"


def copies(place: Path, name: str) -> Sequence[Path]:
    """The folders with a copy of a model that a place has."""
    return model(name, Places.resolve(), weights=True).copies(Mirror(path=place))


@pytest.mark.parametrize(
    ("laid_out", "named"),
    [
        ("tiny", ""),
        ("owner/tiny", ""),
        (SNAPSHOT, ""),
        (SNAPSHOT, "hub"),
    ],
)
def test_a_model_is_found_whatever_folder_of_its_copy_is_named(
    user_dir: Path, laid_out: str, named: str
) -> None:
    lay_out({f"{laid_out}/{name}": content for name, content in FILES.items()}, user_dir)
    assert copies(user_dir / named, "owner/tiny") == [user_dir / laid_out]
    assert copies(user_dir / named, "owner/other") == []


def test_a_copy_in_the_place_of_a_download_is_not_held_to_its_hash(
    user_dir: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Windows without symbolic links keeps a download: the blob is a hard link."""
    monkeypatch.setenv("HF_HUB_CACHE", str(user_dir / "hub"))
    blob = user_dir / "hub" / "models--owner--tiny" / "blobs" / ("0" * 40)
    laid_out = {f"{SNAPSHOT}/vocab.txt": b"x", "hub/models--owner--tiny/refs/main": b"1234"}
    lay_out({**laid_out, **{f"own/{name}": content for name, content in FILES.items()}}, user_dir)
    snapshot = snapshot_of("owner/tiny")
    assert snapshot is not None
    blob.parent.mkdir()
    blob.hardlink_to(snapshot / "vocab.txt")
    assert hash_in_name(snapshot / "vocab.txt") == blob.name
    tiny = model("owner/tiny", places, weights=True)
    (user_dir / "own").rename(user_dir / "tiny")
    tiny.fetch(Mirror(path=user_dir), tiny.state())
    assert hash_in_name(snapshot / "vocab.txt") is None
