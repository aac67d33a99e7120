"""What to type to get region features, for the hints of errors about them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from mmf_win.console import shell_line
from mmf_win.errors import DataError
from mmf_win.integrity.manifest import Manifest
from mmf_win.paths import DatasetPaths, data_option

BUILT_FROM = "folders"
"""In the result of a manifest: what an LMDB was built from."""


def remake_features(lmdb: Path) -> str:
    """How to repair an LMDB that came out of an archive, and to make one that did not, or was never there."""
    features = lmdb.parent
    manifest = None
    with suppress(DataError, OSError):
        manifest = Manifest.load(features)
    here = _where_mmf_looks(features)
    if here is not None and manifest and manifest.source:
        return f"`{shell_line('mmfw', 'repair', 'features', *here)}`"
    is_listed = manifest is not None and f"{lmdb.name}/data.mdb" in manifest.files
    folders = list(manifest.result.get(BUILT_FROM, [])) if manifest and is_listed else []
    where = ["-o", lmdb] if here is None or lmdb.name != "detectron.lmdb" else here
    force = ["--force"] if manifest or (lmdb / "data.mdb").exists() else []
    build = shell_line("mmfw", "features", "add", *(folders or ["FOLDER"]), *where, *force)
    if folders:
        return f"`{build}`"
    extract = shell_line("mmfw", "features", "extract", "ARCHIVE", *force, *where)
    unpack = f"`{extract}` unpacks the region features of an archive; " if where is here else ""
    return f"{unpack}`{build}` builds the LMDB of the .npy files in FOLDER alone"


def give_archive(name: str, folder: Path) -> str:
    """How to repair files in a folder that came out of an archive that nobody publishes."""
    give = f"give {name} or its folder with --source"
    here = _where_mmf_looks(folder)
    if here is None:
        return give
    extract = shell_line("mmfw", "features", "extract", "ARCHIVE", "--force", *here)
    return f"{give}, or unpack another archive with `{extract}`"


def _where_mmf_looks(features: Path) -> list[str] | None:
    """What to type for the data folder that MMF finds these features in; None where it finds others."""
    data_dir = features.parents[3] if len(features.parents) > 3 else features
    return data_option(data_dir) if features == DatasetPaths.below(data_dir).features else None
