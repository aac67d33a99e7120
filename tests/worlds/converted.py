"""What is wrong with a dataset that was converted."""

from __future__ import annotations

from collections.abc import Callable

from mmf_win.dataset.manifest import load_manifest
from mmf_win.integrity.finding import Difference
from mmf_win.integrity.verify import find_damage
from mmf_win.paths import DatasetPaths


def verify_dataset(
    paths: DatasetPaths, *, full: bool = False, only: Callable[[str], bool] = lambda name: True
) -> list[Difference] | None:
    """Compare the files whose names matter with the manifest; None where no conversion has finished."""
    manifest = load_manifest(paths)
    return manifest and find_damage(manifest, full=full, only=[name for name in manifest.files if only(name)])
