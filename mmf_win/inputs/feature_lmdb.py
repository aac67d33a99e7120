"""Region features in LMDBs: reading their keys, finding rows without features, and building new LMDBs.

LMDBs for the user's own images are built from ``.npy`` files.
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
from mmf_win.dataset.annotations import AnnotationRow, list_splits, read_annotations
from mmf_win.errors import DamagedFeaturesError, DatasetError, StoppedByUserError, UsageError
from mmf_win.files import read_json, write_json
from mmf_win.integrity.digest import hash_file
from mmf_win.integrity.manifest import FileStamp, Manifest, ManifestEntry, load_intact_manifest
from mmf_win.paths import DatasetPaths, MmfPaths, data_dir_arguments, module_command
from mmf_win.unpacking.extract import install_staged
from mmf_win.unpacking.staging import open_staging
from mmf_win.upstream.install import require_packages

_BUILT_FROM_KEY = "folders"  # key in the manifest's result
_KEYS_FILE, _LMDB_DATA = "mmfw-keys.json", "data.mdb"


def read_image_keys(folder: Path, *, read_records: bool = False) -> frozenset[str]:
    """Return the image keys of an LMDB of region features.

    The keys are cached next to the LMDB until it changes.

    Args:
        folder: The LMDB.
        read_records: Ignore the cache and check every record, as MMF reads them later.

    Returns:
        The keys; each has a record.

    Raises:
        DamagedFeaturesError: The LMDB is truncated or damaged.
        UnsafeFeaturesError: A record could run code when it is unpickled.
        MmfEnvironmentError: lmdb is not installed.
        OSError: The file cannot be opened.
    """
    data = folder / _LMDB_DATA if folder.is_dir() else folder
    keys_file = folder.parent / _KEYS_FILE
    stamp = list(astuple(FileStamp.from_stat(data.stat())))[:-1]
    if not read_records:
        with suppress(OSError, ValueError, TypeError, KeyError):
            cached = read_json(keys_file)
            if (cached["lmdb"], cached["checked"]) == (folder.name, stamp):
                return frozenset(cached["keys"])
    require_packages("lmdb")
    data.open("rb").close()  # without read permission, it would be reported as damaged
    try:
        keys = run_lmdb_helper("lmdb_file", str(folder.absolute()), "records" if read_records else "keys")
    except DamagedFeaturesError as error:
        error.hint = rebuild_features_hint(folder)
        raise
    with suppress(OSError):
        write_json(keys_file, {"lmdb": folder.name, "checked": stamp, "keys": keys})
    return frozenset(keys)


def add_features(folders: Sequence[Path], lmdb: Path, mmf_paths: MmfPaths, *, force: bool = False) -> dict[str, Any]:
    """Build an LMDB with a manifest from the features in folders; on failure, nothing changes.

    Args:
        folders: Contain ``NAME.npy`` and ``NAME_info.npy``, as written by MMF's extraction scripts.
        lmdb: The LMDB's folder.
        mmf_paths: Folders of MMF, with the splits that the images are compared with.
        force: Replace an existing LMDB.

    Returns:
        A dictionary with ``lmdb``, its path; ``images``, their number; ``numbers``, the length of a region's
        feature vector; ``regions``, the smallest and the largest number of regions of an image;
        ``without_info``, the images without an info file; and ``splits``, which maps each split to the number
        of its ``rows`` and the number of its rows ``with_features``.

    Raises:
        DatasetError: A file cannot be used, or the LMDB already exists; nothing was changed.
        ResourceError: There is not enough disk space; nothing was changed.
        UsageError: The manifest of the LMDB's parent folder lists other files, too.
        MmfEnvironmentError: lmdb or numpy is not installed.
    """
    require_packages("lmdb", "numpy")
    dataset = mmf_paths.dataset
    splits = {split: read_annotations(dataset.annotation_file(split)) for split in list_splits(dataset)}
    sources = list(dict.fromkeys(str(folder.absolute()) for folder in folders))
    with open_staging(lmdb.parent, wait=True) as staging:
        _require_free_path(lmdb, force)
        try:
            summary = run_lmdb_helper("builder", str(staging.new_dir / lmdb.name), *sources)
        except DamagedFeaturesError as error:
            raise DatasetError(f"{lmdb}: cannot be built: {error}") from None
        data = staging.new_dir / lmdb.name / _LMDB_DATA
        files = {f"{lmdb.name}/{_LMDB_DATA}": ManifestEntry(hash_file(data, "Hashing"), data.stat().st_size)}
        install_staged(staging, Manifest(lmdb.parent, files, "built", result={_BUILT_FROM_KEY: sources}))
    keys = frozenset(summary.pop("keys"))
    coverage = {
        split: {"rows": len(rows), "with_features": len(rows) - len(find_rows_without_features(rows, keys))}
        for split, rows in splits.items()
    }
    return {"lmdb": lmdb, "images": len(keys), **summary, "splits": coverage}


def _require_free_path(lmdb: Path, force: bool) -> None:
    """Check that an LMDB can be created, and that the manifest of its parent folder lists no other files.

    Raises:
        UsageError: The manifest lists other files.
        DatasetError: The LMDB already exists, and ``force`` is False.
    """
    manifest = load_intact_manifest(lmdb.parent) if force else Manifest.load(lmdb.parent)
    if manifest and (other_files := manifest.files.keys() - {f"{lmdb.name}/{_LMDB_DATA}"}):
        message = f"{lmdb.parent}: the manifest of this folder lists other files ({min(other_files)})"
        raise UsageError(message, hint="create the LMDB in another folder")
    if (lmdb / _LMDB_DATA).exists() and not force:
        message = f"{lmdb}: region features already exist"
        raise DatasetError(message, hint="replace them with --force, or choose another --data-dir")


def run_lmdb_helper(module: str, lmdb: str, *arguments: str) -> Any:
    """Run a module of ``mmf_win.features`` on an LMDB in a child process.

    The module imports packages that this process must not import, and a truncated LMDB crashes its reader.
    ``python -m mmf_win.features.MODULE LMDB ARGUMENTS`` prints its answer as JSON.

    Args:
        module: Name of the module.
        lmdb: Path of the LMDB.
        arguments: Further arguments of the module.

    Returns:
        The answer.

    Raises:
        StoppedByUserError: The user pressed Ctrl+C.
        MmfwError: The module reported this error.
        DamagedFeaturesError: The module printed no answer.
    """
    command = module_command(f"mmf_win.features.{module}", lmdb, *arguments)
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    if result.returncode == StoppedByUserError.exit_code:
        raise StoppedByUserError("interrupted")
    try:
        answer = json.loads(result.stdout)
    except ValueError:
        message = f"{lmdb}: reading or writing failed (exit code {result.returncode})"
        raise DamagedFeaturesError(message) from None
    if "error" in answer:
        error_type, message = getattr(errors, answer["kind"]), answer["error"]
        raise error_type(message, hint=answer["hint"], prefix=answer["about"])
    return answer["answer"]


def find_rows_without_features(rows: Iterable[AnnotationRow], keys: Collection[str]) -> list[AnnotationRow]:
    """Return the rows whose image has no record under any name that MMF tries.

    MMF first tries the number at the end of the name without leading zeros, then the name
    (mmf.datasets.databases.readers.feature_readers).

    Args:
        rows: Rows of an annotation file.
        keys: Image keys of the LMDB.

    Returns:
        The rows without features, in order.
    """
    return [row for row in rows if find_feature_key(row.img, keys) is None]


def find_mismatched_features(rows: Iterable[AnnotationRow], keys: Collection[str]) -> dict[str, str]:
    """Map each image for which MMF would load another image's features to the key of that record.

    MMF ignores folders, and for ``a_12.png`` it prefers the key ``12`` to ``a_12``.

    Args:
        rows: Rows of an annotation file.
        keys: Image keys of the LMDB.

    Returns:
        Image → key.
    """
    mismatched: dict[str, str] = {}
    owners: dict[str, str] = {}
    for row in rows:
        key, stem = find_feature_key(row.img, keys), _stem(row.img)
        is_matching = key in (stem, stem.lstrip("0") or "0")
        if key is not None and not (is_matching and owners.setdefault(key, row.img) == row.img):
            mismatched[row.img] = key
    return mismatched


def find_feature_key(image: str, keys: Collection[str]) -> str | None:
    """Return the key of the record that MMF loads for an image, or None if there is none."""
    return next((key for key in _list_candidate_keys(image) if key in keys), None)


def _list_candidate_keys(image: str) -> tuple[str, ...]:
    stem = _stem(image)
    with suppress(ValueError):
        return str(int(stem.split("_")[-1])), stem
    return (stem,)


def _stem(image: str) -> str:
    return image.split("/")[-1].split(".")[0]


def rebuild_features_hint(lmdb: Path) -> str:
    """Return the hint for a missing or damaged LMDB.

    Returns:
        If the LMDB comes from an archive, the command that repairs it. If it was built from known folders, the
        command that builds it again. Otherwise, the commands that build one from ``.npy`` files or, if it is the
        dataset's own LMDB, unpack one from an archive.
    """
    features = lmdb.parent
    manifest = load_intact_manifest(features)
    data_dir_args = _data_dir_arguments(features)
    if data_dir_args is not None and manifest and manifest.source:
        return f"run `{format_command('mmfw', 'repair', 'features', *data_dir_args)}`"
    is_in_manifest = manifest is not None and f"{lmdb.name}/{_LMDB_DATA}" in manifest.files
    folders = list(manifest.result.get(_BUILT_FROM_KEY, [])) if manifest and is_in_manifest else []
    target = ["-o", lmdb] if data_dir_args is None or lmdb.name != "detectron.lmdb" else data_dir_args
    force = ["--force"] if manifest or (lmdb / _LMDB_DATA).exists() else []
    add_command = format_command("mmfw", "features", "add", *(folders or ["FOLDER"]), *target, *force)
    if folders:
        return f"run `{add_command}`"
    extract_command = format_command("mmfw", "features", "extract", "ARCHIVE", *force, *target)
    hint = f"unpack the region features of an archive with `{extract_command}`, or " if target is data_dir_args else ""
    return f"{hint}build an LMDB of only the .npy files in FOLDER with `{add_command}`"


def missing_archive_hint(name: str, folder: Path) -> str:
    """Return how to repair files from an archive that is not published."""
    source_hint = f"pass {name} or its folder with --source"
    data_dir_args = _data_dir_arguments(folder)
    if data_dir_args is None:
        return source_hint
    extract_command = format_command("mmfw", "features", "extract", "ARCHIVE", "--force", *data_dir_args)
    return f"{source_hint}, or unpack another archive with `{extract_command}`"


def _data_dir_arguments(features: Path) -> list[str] | None:
    """Return the arguments for the data folder in which MMF finds these features, or None."""
    data_dir = features.parents[3] if len(features.parents) > 3 else features
    return data_dir_arguments(data_dir) if features == DatasetPaths.from_data_dir(data_dir).features else None
