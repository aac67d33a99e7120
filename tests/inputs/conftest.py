"""Empty folders, and region features that are added in them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from mmf_win.inputs.added import Added, add_features
from mmf_win.paths import Places


@pytest.fixture(autouse=True)
def _notes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mmf_win")


@pytest.fixture
def places(user_dir: Path) -> Places:
    """Empty folders."""
    environ = {"MMF_CACHE_DIR": str(user_dir / "cache")}
    return Places.resolve(user_dir / "data dir", user_dir / "save", environ=environ)


@pytest.fixture
def lmdb(places: Places) -> Path:
    """Where MMF looks."""
    return places.dataset.features / "detectron.lmdb"


@pytest.fixture
def add(places: Places, lmdb: Path) -> Callable[..., Added]:
    """Adds folders to that LMDB."""
    return lambda *folders, force=False: add_features(folders, lmdb, places, force=force)
