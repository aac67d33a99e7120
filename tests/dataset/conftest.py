"""Fixtures of the dataset tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.integrity.manifest import Manifest
from mmf_win.integrity.verify import FileProblem, find_damage
from mmf_win.paths import DatasetPaths
from tests.worlds.memes import dataset_files, make_encrypted_zip


@pytest.fixture
def archive(user_dir: Path) -> Path:
    """Return an encrypted zip of the second phase."""
    return make_encrypted_zip(user_dir / "hateful memes 恶意.zip", dataset_files())


def verify_dataset(paths: DatasetPaths, *, full: bool = False) -> list[FileProblem] | None:
    """Return the damaged files of a converted dataset, or None if no conversion has finished."""
    manifest = Manifest.load(paths.root)
    return manifest and find_damage(manifest, full=full)
