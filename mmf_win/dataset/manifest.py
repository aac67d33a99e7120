"""The manifest of a dataset that was converted."""

from __future__ import annotations

from mmf_win.integrity.manifest import Manifest, damaged, noted
from mmf_win.paths import DatasetPaths
from mmf_win.unpacking.staging import require_finished


def load_manifest(paths: DatasetPaths) -> Manifest | None:
    """The manifest of the dataset; None where no conversion has finished.

    Raises:
        DamagedManifest: the manifest cannot be understood.
        UnfinishedInstallation: a conversion was killed amidst the moves to their places.
    """
    require_finished(paths.root)
    return Manifest.load(paths.root)


def require_list(paths: DatasetPaths) -> Manifest | None:
    """The manifest as :func:`load_manifest` gives it, but a list of hashes that is gone is an error, too.

    Raises:
        DamagedManifest: the list is gone, or cannot be understood.
    """
    manifest = load_manifest(paths)
    if manifest is None and noted(paths.root):
        raise damaged(paths.root, "it is missing")
    return manifest
