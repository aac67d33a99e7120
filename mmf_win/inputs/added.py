"""Region features of the user's own images: an LMDB that is built of ``.npy`` files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmf_win.console import Progress
from mmf_win.dataset.annotations import read_rows, splits_on_disk
from mmf_win.errors import DamagedFeatures, DatasetError, UsageError
from mmf_win.inputs.keys import BUILT_FROM, answer_of, without_features
from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.manifest import Entry, Manifest, undamaged
from mmf_win.paths import Places
from mmf_win.unpacking.extract import install
from mmf_win.unpacking.staging import staging
from mmf_win.upstream.install import require_packages

_DATA = "data.mdb"


def add_features(
    folders: Sequence[Path], lmdb: Path, places: Places, *, force: bool = False
) -> dict[str, Any]:
    """Build an LMDB of the features in folders, with a manifest beside it: all of it, or nothing.

    The folders hold ``NAME.npy`` and ``NAME_info.npy``, as MMF's extraction scripts write them; the images
    are compared with the splits in MMF's folders. With ``force``, the LMDB that is there is replaced.

    Returns:
        the ``lmdb``; the number of its ``images``; how many ``numbers`` describe a region; the smallest and
        the largest number of ``regions`` of an image; the images ``without_info``; and for each of the
        ``splits``, how many ``rows`` it has, and how many of them ``with_features``.

    Raises:
        DatasetError: a file cannot be used, or there is an LMDB already; nothing was changed.
        ResourceError: there is not enough room; nothing was changed.
        UsageError: the LMDB's folder lies beside files with a manifest of their own.
        MmfError: lmdb or numpy is not installed.
    """
    require_packages("lmdb", "numpy")
    splits = {split: read_rows(places.dataset.split(split)) for split in splits_on_disk(places.dataset)}
    given = list(dict.fromkeys(str(folder.absolute()) for folder in folders))
    with staging(lmdb.parent, wait=True) as here:
        _require_free(lmdb, force)
        try:
            found = answer_of("builder", str(here.new / lmdb.name), *given)
        except DamagedFeatures as error:
            raise DatasetError(f"{lmdb}: it could not be built: {error}") from None
        data = here.new / lmdb.name / _DATA
        with Progress("Hashing", data.stat().st_size) as bar:
            entry = Entry(file_digest(data, progress=bar.advance).hex(), data.stat().st_size)
        files = {f"{lmdb.name}/{_DATA}": entry}
        install(here, Manifest(lmdb.parent, files, "built", result={BUILT_FROM: given}))
    keys = frozenset(found.pop("keys"))
    covered = {
        split: {"rows": len(rows), "with_features": len(rows) - len(without_features(rows, keys))}
        for split, rows in splits.items()
    }
    return {"lmdb": lmdb, "images": len(keys), **found, "splits": covered}


def _require_free(lmdb: Path, force: bool) -> None:
    """Refuse a place that is taken."""
    manifest = undamaged(lmdb.parent) if force else Manifest.load(lmdb.parent)
    if manifest and (others := manifest.files.keys() - {f"{lmdb.name}/{_DATA}"}):
        message = f"{lmdb.parent}: it holds other files with a manifest of their own ({min(others)})"
        raise UsageError(message, hint="name an LMDB in another folder")
    if (lmdb / _DATA).exists() and not force:
        message = f"{lmdb}: there are region features already"
        raise DatasetError(message, hint="--force replaces it; --data-dir chooses another folder")
