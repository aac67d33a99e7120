"""Region features of the user's own images: an LMDB that is built of ``.npy`` files, or extended with them.

The new LMDB is written beside the old one and takes its place in one step. ``mmfw-built.json`` in it lists
the folders that it was built from, so that it can be built again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mmf_win import errors
from mmf_win.console import Progress
from mmf_win.dataset.annotations import read_rows, splits_on_disk
from mmf_win.errors import DamagedFeatures, DataError, DatasetError, UsageError
from mmf_win.files import read_json, remove, rename, write_json
from mmf_win.inputs.keys import answer_of, image_keys, key_of, mistaken, without_features
from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.manifest import Entry, Manifest, manifest_files
from mmf_win.integrity.verify import mark_intact, verify
from mmf_win.paths import Places
from mmf_win.unpacking.staging import flush, staging
from mmf_win.upstream.install import require_packages

_DATA, _NOTE = "data.mdb", "mmfw-built.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Added:
    """What :func:`add_features` has done.

    Attributes:
        lmdb: the LMDB.
        records: how many images it has features of.
        added: how many of them are new.
        replaced: how many replace others.
        same: how many were there already.
        numbers: how many numbers describe a region.
        regions: the smallest and the largest number of regions in the folders.
        without_info: keys in the folders that have no ``_info.npy``.
        splits: split → how many ``rows`` it has, and how many of them ``with_features`` now.
        unmatched: keys in the folders that MMF would find for no image of the splits.
        mistaken: image → key of another image whose features MMF would take.
    """

    lmdb: Path
    records: int
    added: int
    replaced: int
    same: int
    numbers: int
    regions: tuple[int, int]
    without_info: Sequence[str]
    splits: Mapping[str, Mapping[str, int]]
    unmatched: Sequence[str]
    mistaken: Mapping[str, str]


def add_features(folders: Sequence[Path], lmdb: Path, places: Places, *, force: bool = False) -> Added:
    """Build an LMDB of the features in folders, or extend the one that is there.

    Args:
        folders: hold ``NAME.npy`` and ``NAME_info.npy``, as MMF's extraction scripts write them.
        lmdb: the LMDB's folder.
        places: MMF's folders; the keys are compared with the splits in them.
        force: replace records with other content, and a damaged LMDB.

    Raises:
        DatasetError: a file cannot be used, or there are other features under its key; nothing was changed.
        ResourceError: there is not enough room; nothing was changed.
        MmfError: lmdb or numpy is not installed.
    """
    require_packages("lmdb", "numpy")
    splits = {split: read_rows(places.dataset.split(split)) for split in splits_on_disk(places.dataset)}
    given = list(dict.fromkeys(str(folder.absolute()) for folder in folders))
    with staging(lmdb.parent, wait=True) as here:
        base = _base(lmdb, force)
        new = here.new / lmdb.name
        words = [str(new), str(base or ""), "force" if force else "", *given]
        found, code = answer_of("mmf_win.worker.build_features", *words)
        if found is None:
            raise DatasetError(f"{lmdb}: it could not be built (exit code {code})")
        if "error" in found:
            raise getattr(errors, found["kind"])(found["error"], hint=found["hint"])
        if found["added"] or found["replaced"]:
            before = built_from(lmdb) if base else []
            known = base is None or bool(before)
            earlier = [folder for folder in before or [] if folder not in given]
            _install(new / _DATA, lmdb, [*earlier, *given] if known else None)
    rows = [row for listed in splits.values() for row in listed]
    keys = frozenset(found.pop("keys"))
    asked_for = {key_of(row.img, keys) for row in rows}
    return Added(
        lmdb,
        len(keys),
        splits={
            split: {"rows": len(listed), "with_features": len(listed) - len(without_features(listed, keys))}
            for split, listed in splits.items()
        },
        unmatched=[key for key in found.pop("given") if splits and key not in asked_for],
        mistaken=mistaken(rows, keys),
        **found,
    )


def built_from(lmdb: Path) -> list[str] | None:
    """The folders that an LMDB was built from.

    Returns:
        none of them where it extends one of another origin; None where mmfw has not built it.
    """
    with suppress(DataError):
        manifest = Manifest.load(lmdb.parent)
        if manifest and manifest.basis == "built" and f"{lmdb.name}/{_DATA}" in manifest.files:
            with suppress(OSError, ValueError):
                return read_json(lmdb / _NOTE) or []
            return []
    return None


def _base(lmdb: Path, force: bool) -> Path | None:
    """The LMDB to extend; None where there is none, or a damaged one that is to be replaced.

    Raises:
        DamagedFeatures: it is damaged.
        UsageError: the manifest that would list it lists files of another origin.
    """
    manifest, name = Manifest.load(lmdb.parent), f"{lmdb.name}/{_DATA}"
    others = manifest.files.keys() - {name} if manifest else ()
    if manifest and others and manifest.basis != "built":
        raise UsageError(
            f"{lmdb.parent}: it holds other files with a manifest of their own ({min(others)})",
            hint="name an LMDB in another folder",
        )
    problem: object = None
    if manifest and name in manifest.files:
        problem = next(iter(verify(manifest, only=[name], title="Verifying what is there")), None)
    elif (lmdb / _DATA).is_file():
        try:
            image_keys(lmdb)
        except DatasetError as error:
            problem = error
    else:
        return None
    if problem is None:
        return lmdb
    if not force:
        raise DamagedFeatures(f"{lmdb}: damaged: {problem}", lmdb=lmdb)
    _log.warning("%s is damaged (%s), so it is built again", lmdb, problem)
    return None


def _install(data: Path, lmdb: Path, folders: list[str] | None) -> None:
    """Put a new file in the place of the old one; at no moment there is none, or a half one."""
    folder, size = lmdb.parent, data.stat().st_size
    flush(data)
    with Progress("Hashing", size) as bar:
        sha256 = file_digest(data, progress=bar.advance).hex()
    before = Manifest.load(folder) or Manifest(folder, {})
    for path in manifest_files(folder):  # it must not speak of the file that comes
        remove(path)
    lmdb.mkdir(exist_ok=True)
    rename(data, lmdb / _DATA)
    write_json(lmdb / _NOTE, folders)
    name = f"{lmdb.name}/{_DATA}"
    files = sorted({**before.files, name: Entry(sha256, size)}.items())
    manifest = Manifest(folder, dict(files), "built", checks=before.checks)
    manifest.save()
    mark_intact(manifest, [name])
