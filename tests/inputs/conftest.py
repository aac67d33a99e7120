"""Empty folders, region features that are added in them, and a zoo to fetch from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mmf_win.inputs.archive_input import RegionFeaturesInput
from mmf_win.inputs.feature_lmdb import add_features
from mmf_win.paths import MmfPaths
from tests.worlds.memes import tar_gz
from tests.worlds.web_server import WebServer
from tests.worlds.zoo import FC7_FILES, Zoo, features_archive

AddFeatures = Callable[..., dict[str, Any]]
"""Adds folders to an LMDB, and says what it has done."""


@pytest.fixture(autouse=True)
def _notes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mmf_win")


@pytest.fixture
def lmdb(mmf_paths: MmfPaths) -> Path:
    """Where MMF looks."""
    return mmf_paths.dataset.features / "detectron.lmdb"


@pytest.fixture
def add_to_lmdb(mmf_paths: MmfPaths, lmdb: Path) -> AddFeatures:
    """Adds folders to that LMDB."""
    return lambda *folders, force=False: add_features(folders, lmdb, mmf_paths, force=force)


@pytest.fixture
def zoo(mmf_paths: MmfPaths) -> Iterator[Zoo]:
    """Archives on a web server of this machine, and folders for what comes out of them."""
    with WebServer.serving(features_tar_gz=features_archive(), fc7_tar_gz=tar_gz(dict(FC7_FILES))) as server:
        yield Zoo(server, mmf_paths)


def feature_state(lmdb: Path, places: MmfPaths) -> str:
    """What a run would find that reads this LMDB."""
    names = (f"{lmdb.name}/data.mdb",)
    return RegionFeaturesInput("region features", lmdb.parent, places, names).verify(full=True).state
