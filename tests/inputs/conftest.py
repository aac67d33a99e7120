"""Fixtures of the input tests: empty folders, a builder of region features, and a zoo."""

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
    """Return the path where MMF looks for the LMDB."""
    return mmf_paths.dataset.features / "detectron.lmdb"


@pytest.fixture
def add_to_lmdb(mmf_paths: MmfPaths, lmdb: Path) -> AddFeatures:
    """Return a function that builds that LMDB from folders."""
    return lambda *folders, force=False: add_features(folders, lmdb, mmf_paths, force=force)


@pytest.fixture
def zoo(mmf_paths: MmfPaths) -> Iterator[Zoo]:
    """Serve archives from a local web server, with folders for their content."""
    with WebServer.serving(features_tar_gz=features_archive(), fc7_tar_gz=tar_gz(dict(FC7_FILES))) as server:
        yield Zoo(server, mmf_paths)


def feature_state(lmdb: Path, mmf_paths: MmfPaths) -> str:
    """Return the state of an LMDB according to a full verification."""
    names = (f"{lmdb.name}/data.mdb",)
    return RegionFeaturesInput("region features", lmdb.parent, mmf_paths, names).verify(full=True).state
