"""A zoo of the user's own, which need not say all that MMF's says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmf_win.paths import Places
from mmf_win.upstream.zoo import Zoo


@pytest.mark.parametrize("version", [{}, {"version": "1.0"}])
def test_an_entry_may_lack_a_version(user_dir: Path, version: dict[str, str]) -> None:
    resource = {"url": "mmf://features.tar.gz", "file_name": "features.tar.gz"}
    zoo = user_dir / "zoo.yaml"
    zoo.write_text(
        json.dumps({"hateful_memes": {"defaults": {**version, "resources": {"features": resource}}}})
    )
    entry = Zoo(user_dir, Places.resolve(user_dir), str(zoo)).dataset("features")
    assert entry is not None and entry.version == version.get("version")
    assert entry.url.startswith("https://") and entry.archive.name == "features.tar.gz"
