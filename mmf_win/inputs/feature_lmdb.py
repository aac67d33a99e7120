"""Region features in an LMDB: of which images there are some, which rows have none, and how to get others.

Of the user's own images, an LMDB is built of ``.npy`` files.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

from mmf_win import errors
from mmf_win.console import format_command
from mmf_win.dataset.annotations import AnnotationRow, read_annotations, splits_on_disk
from mmf_win.errors import DamagedFeaturesError, DatasetError, StoppedByUserError, UsageError
from mmf_win.files import read_json, write_json
from mmf_win.integrity.digest import hash_file
from mmf_win.integrity.manifest import FileStamp, Manifest, ManifestEntry, load_intact_manifest
from mmf_win.paths import DatasetPaths, MmfPaths, data_dir_arguments, module_command
from mmf_win.unpacking.extract import install_staged
from mmf_win.unpacking.staging import open_staging
from mmf_win.upstream.install import require_packages

_BUILT_FROM_KEY = "folders"  # in the result of a manifest
_KEYS_FILE, _LMDB_DATA = "mmfw-keys.json", "data.mdb"


def read_image_keys(folder: Path, *, read_records: bool = False) -> frozenset[str]:
    """The keys of an LMDB of region features, each of which has a record.

    They are remembered beside it for as long as nobody touches it. To ``walk`` is to read every record all
    the same, as MMF does later.

    Raises:
        DamagedFeatures: it is cut off or damaged.
        HostileFeatures: what is in it could run code.
        MmfError: lmdb is not installed.
        OSError: the system refuses to open it.
    """
    data = folder / _LMDB_DATA if folder.is_dir() else folder
    note = folder.parent / _KEYS_FILE
    state = list(astuple(FileStamp.from_stat(data.stat())))[:-1]
    if not read_records:
        with suppress(OSError, ValueError, TypeError, KeyError):
            noted = read_json(note)
            if (noted["lmdb"], noted["checked"]) == (folder.name, state):
                return frozenset(noted["keys"])
    require_packages("lmdb")
    data.open("rb").close()  # else it would be called damaged where it may not be read
    try:
        keys = run_lmdb_helper("lmdb_file", str(folder.absolute()), "records" if read_records else "keys")
    except DamagedFeaturesError as error:
        error.hint = rebuild_features_hint(folder)
        raise
    with suppress(OSError):
        write_json(note, {"lmdb": folder.name, "checked": state, "keys": keys})
    return frozenset(keys)


def add_features(
    folders: Sequence[Path], lmdb: Path, places: MmfPaths, *, force: bool = False
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
    splits = {
        split: read_annotations(places.dataset.annotation_file(split))
        for split in splits_on_disk(places.dataset)
    }
    given = list(dict.fromkeys(str(folder.absolute()) for folder in folders))
    with open_staging(lmdb.parent, wait=True) as here:
        _require_free_path(lmdb, force)
        try:
            found = run_lmdb_helper("builder", str(here.new_dir / lmdb.name), *given)
        except DamagedFeaturesError as error:
            raise DatasetError(f"{lmdb}: it could not be built: {error}") from None
        data = here.new_dir / lmdb.name / _LMDB_DATA
        files = {f"{lmdb.name}/{_LMDB_DATA}": ManifestEntry(hash_file(data, "Hashing"), data.stat().st_size)}
        install_staged(here, Manifest(lmdb.parent, files, "built", result={_BUILT_FROM_KEY: given}))
    keys = frozenset(found.pop("keys"))
    covered = {
        split: {"rows": len(rows), "with_features": len(rows) - len(rows_without_features(rows, keys))}
        for split, rows in splits.items()
    }
    return {"lmdb": lmdb, "images": len(keys), **found, "splits": covered}


def _require_free_path(lmdb: Path, force: bool) -> None:
    """Refuse a place that is taken."""
    manifest = load_intact_manifest(lmdb.parent) if force else Manifest.load(lmdb.parent)
    if manifest and (others := manifest.files.keys() - {f"{lmdb.name}/{_LMDB_DATA}"}):
        message = f"{lmdb.parent}: it holds other files with a manifest of their own ({min(others)})"
        raise UsageError(message, hint="name an LMDB in another folder")
    if (lmdb / _LMDB_DATA).exists() and not force:
        message = f"{lmdb}: there are region features already"
        raise DatasetError(message, hint="--force replaces it; --data-dir chooses another folder")


def run_lmdb_helper(module: str, lmdb: str, *arguments: str) -> Any:
    """Ask a module of features about an LMDB; it imports what the parent must not.

    ``python -m mmf_win.features.MODULE LMDB WORDS`` prints JSON in its own process.

    Raises:
        Interrupted: the user pressed Ctrl+C.
        MmfwError: what the answer is instead.
        DamagedFeatures: there is none; to read what is cut off ends the process.
    """
    command = module_command(f"mmf_win.features.{module}", lmdb, *arguments)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    if done.returncode == StoppedByUserError.exit_code:
        raise StoppedByUserError("interrupted")
    try:
        found = json.loads(done.stdout)
    except ValueError:
        message = f"{lmdb}: not read or written to its end (exit code {done.returncode})"
        raise DamagedFeaturesError(message) from None
    if "error" in found:
        kind, message = getattr(errors, found["kind"]), found["error"]
        raise kind(message, hint=found["hint"], prefix=found["about"])
    return found["answer"]


def rows_without_features(rows: Iterable[AnnotationRow], keys: Collection[str]) -> list[AnnotationRow]:
    """The rows whose image has no record, by the names that MMF would ask for.

    It takes the number at a name's end first, without its zeros, then the name itself
    (mmf.datasets.databases.readers.feature_readers).
    """
    return [row for row in rows if find_feature_key(row.img, keys) is None]


def find_mismatched_features(rows: Iterable[AnnotationRow], keys: Collection[str]) -> dict[str, str]:
    """The images for which MMF would take the features of another one → the key of these.

    It knows no folders, and for ``a_12.png`` it takes the key ``12`` before ``a_12``.
    """
    found: dict[str, str] = {}
    owners: dict[str, str] = {}
    for row in rows:
        key, stem = find_feature_key(row.img, keys), _stem(row.img)
        is_own = key in (stem, stem.lstrip("0") or "0")
        if key is not None and not (is_own and owners.setdefault(key, row.img) == row.img):
            found[row.img] = key
    return found


def find_feature_key(image: str, keys: Collection[str]) -> str | None:
    """The key of the record that MMF takes for an image; None where there is none."""
    return next((key for key in _candidate_keys(image) if key in keys), None)


def _candidate_keys(image: str) -> tuple[str, ...]:
    stem = _stem(image)
    with suppress(ValueError):
        return str(int(stem.split("_")[-1])), stem
    return (stem,)


def _stem(image: str) -> str:
    return image.split("/")[-1].split(".")[0]


def rebuild_features_hint(lmdb: Path) -> str:
    """How to repair an LMDB that came out of an archive, and to make one that did not, or was never there."""
    features = lmdb.parent
    manifest = load_intact_manifest(features)
    here = _data_dir_arguments(features)
    if here is not None and manifest and manifest.source:
        return f"`{format_command('mmfw', 'repair', 'features', *here)}`"
    is_listed = manifest is not None and f"{lmdb.name}/{_LMDB_DATA}" in manifest.files
    folders = list(manifest.result.get(_BUILT_FROM_KEY, [])) if manifest and is_listed else []
    where = ["-o", lmdb] if here is None or lmdb.name != "detectron.lmdb" else here
    force = ["--force"] if manifest or (lmdb / _LMDB_DATA).exists() else []
    build = format_command("mmfw", "features", "add", *(folders or ["FOLDER"]), *where, *force)
    if folders:
        return f"`{build}`"
    extract = format_command("mmfw", "features", "extract", "ARCHIVE", *force, *where)
    unpack = f"`{extract}` unpacks the region features of an archive; " if where is here else ""
    return f"{unpack}`{build}` builds the LMDB of the .npy files in FOLDER alone"


def missing_archive_hint(name: str, folder: Path) -> str:
    """How to repair files in a folder that came out of an archive that nobody publishes."""
    give = f"give {name} or its folder with --source"
    here = _data_dir_arguments(folder)
    if here is None:
        return give
    extract = format_command("mmfw", "features", "extract", "ARCHIVE", "--force", *here)
    return f"{give}, or unpack another archive with `{extract}`"


def _data_dir_arguments(features: Path) -> list[str] | None:
    """What to type for the data folder that MMF finds these features in; None where it finds others."""
    data_dir = features.parents[3] if len(features.parents) > 3 else features
    return data_dir_arguments(data_dir) if features == DatasetPaths.from_data_dir(data_dir).features else None
