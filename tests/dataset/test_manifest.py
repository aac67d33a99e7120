"""The manifest of a converted dataset, and the dataset verified by it."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

from mmf_win.dataset.convert import convert
from mmf_win.integrity.manifest import SUMS, Manifest
from mmf_win.integrity.verify import find_damage
from mmf_win.paths import DatasetPaths, Places
from tests.dataset.conftest import verify_dataset
from tests.worlds import hostile
from tests.worlds.memes import laid_out, memes
from tests.worlds.tools import call, requires_tool

LONG_AGO = 1_600_000_000


@pytest.fixture
def archive(user_dir: Path) -> Path:
    """An archive that was made long ago."""
    path = hostile.plain_zip(user_dir / "memes.zip", memes())
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


@pytest.fixture
def dataset(archive: Path, places: Places) -> DatasetPaths:
    convert(archive, places)
    return places.dataset


@requires_tool("sha256sum")
def test_a_conversion_writes_the_manifest(dataset: DatasetPaths, archive: Path) -> None:
    manifest = Manifest.load(dataset.root)
    assert manifest is not None and manifest.source is not None
    assert (manifest.basis, manifest.verified_against) == ("archive", "the archive memes.zip")
    assert manifest.source.path == str(archive)
    assert manifest.files.keys() == laid_out(memes()).keys()
    call("sha256sum", "--check", "--strict", "--quiet", SUMS, cwd=dataset.root)


def test_what_was_just_converted_is_not_read_again(
    dataset: DatasetPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotations = [name for name in laid_out(memes()) if name.startswith("annotations/")]
    manifest = Manifest.load(dataset.root)
    assert manifest is not None
    find_damage(manifest, only=annotations)  # written as late as they were checked
    monkeypatch.setattr(import_module("mmf_win.integrity.verify"), "file_digest", None)
    assert find_damage(manifest, only=manifest.files.keys() - annotations) == []


def test_what_nobody_converted_is_not_known(places: Places) -> None:
    assert verify_dataset(places.dataset) is None
