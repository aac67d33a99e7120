"""Region features of the user's own images: an LMDB that is built of ``.npy`` files, or extended with them.

The new LMDB is written beside the old one and takes its place in one step. ``mmfw-built.json`` in it says of
which folders it was made, so that it can be made again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mmf_win.bridge.install import find, require_packages
from mmf_win.bridge.needs.child import answer_of
from mmf_win.bridge.needs.keys import image_keys, matched, remember_keys, without_features
from mmf_win.bridge.versions import dataset_version
from mmf_win.console import Progress, as_typed, say
from mmf_win.dataset.annotations import Row, read_rows, splits_on_disk
from mmf_win.dataset.features import mark_built
from mmf_win.errors import DataError, DatasetError, MmfError, ResourceError, UsageError
from mmf_win.files import read_json, write_json
from mmf_win.files import replace as rename_over
from mmf_win.integrity import Check, Entry, Manifest, file_digest, manifest_files, verify
from mmf_win.paths import Places
from mmf_win.unpacking.staging import flush, staging

_DATA, _NOTE = "data.mdb", "mmfw-built.json"
_ERRORS = {error.exit_code: error for error in (DatasetError, ResourceError)}


@dataclass(frozen=True)
class Origin:
    """What an LMDB was made of.

    Attributes:
        folders: with ``.npy`` files, in the order in which they were added.
        forced: whether records were replaced.
        base: what was there before the first of them; None where there was nothing.
    """

    folders: tuple[str, ...]
    forced: bool
    base: str | None

    @classmethod
    def of(cls, lmdb: Path) -> Origin | None:
        """What is noted of an LMDB; None where mmfw has not made it as it is."""
        with suppress(OSError, ValueError, TypeError, KeyError, DataError):
            note, manifest = read_json(lmdb / _NOTE), Manifest.load(lmdb.parent)
            if manifest and manifest.files[f"{lmdb.name}/{_DATA}"].sha256 == note["sha256"]:
                return cls(tuple(map(str, note["folders"])), bool(note["forced"]), note["base"])
        return None

    def save(self, lmdb: Path, sha256: str) -> None:
        """Note it in the LMDB with this hash."""
        write_json(lmdb / _NOTE, {**asdict(self), "sha256": sha256})


@dataclass(frozen=True)
class Coverage:
    """A split, and how much of it has features now."""

    rows: int
    with_features: int


@dataclass(frozen=True)
class Added:
    """What :func:`add_features` has done.

    Attributes:
        lmdb: the LMDB.
        records: how many images it has features of.
        added: how many of them are new.
        replaced: how many replace others.
        same: how many were there already.
        numbers: how many numbers describe a region; 0 where that was not looked at.
        regions: the smallest and the largest number of regions that were seen; not all records were read.
        without_info: keys of what was written without an ``_info.npy``.
        splits: split → how much of it has features.
        unmatched: keys of the folders that MMF would find for no image of the splits.
        mistaken: image → key of another image whose features MMF would take.
        notes: what was left aside, for people.
    """

    lmdb: Path
    records: int
    added: int
    replaced: int
    same: int
    numbers: int
    regions: tuple[int, int]
    without_info: tuple[str, ...]
    notes: tuple[str, ...]
    splits: Mapping[str, Coverage] = field(default_factory=dict)
    unmatched: tuple[str, ...] = ()
    mistaken: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "lmdb": str(self.lmdb)}


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
    folders = list(dict.fromkeys(folder.absolute() for folder in folders))
    with staging(lmdb.parent, wait=True) as here:
        _require_own_folder(lmdb)
        base, origin = _start(lmdb, Origin(tuple(map(str, folders)), force, None), places)
        new = here.new / lmdb.name
        job = {
            "folders": [str(folder) for folder in folders],
            "base": None if base is None else str(base),
            "target": str(new),
            "force": force,
        }
        answer, code = answer_of("mmf_win.bridge.build_features", json.dumps(job))
        if answer is None:
            raise DatasetError(f"{lmdb}: it could not be built (exit code {code})")
        if "error" in answer:
            raise _ERRORS[answer["code"]](answer["error"], hint=answer["hint"])
        if new.exists():
            _install(new / _DATA, lmdb, origin)
        remember_keys(lmdb, answer["keys"])
    if lmdb.parent == places.dataset.features:
        with suppress(MmfError):  # not installed yet; every run notes it, too
            mark_built(lmdb.parent / ".built.json", dataset_version(find().root))
    added = Added(
        lmdb,
        len(answer["keys"]),
        **{name: answer[name] for name in ("added", "replaced", "same", "numbers")},
        regions=tuple(answer["regions"]),
        without_info=tuple(answer["without_info"]),
        notes=tuple(answer["notes"]),
    )
    return _compared(added, answer["keys"], answer["given"], places)


def remedy(lmdb: Path, places: Places) -> str | None:
    """What to type to make an LMDB again; None where mmfw has not built it of ``.npy`` files."""
    origin = Origin.of(lmdb)
    if origin is None:
        return None
    own = lmdb == places.dataset.features / "detectron.lmdb"
    where = places.data_option if own else ["--output", str(lmdb)]
    again = as_typed(
        "mmfw", "features", "add", *origin.folders, *where, *(["--force"] if origin.forced else [])
    )
    if origin.base is None:
        return again
    return f"put back what it was made of ({origin.base}) with `mmfw features extract --force`, then {again}"


def _require_own_folder(lmdb: Path) -> None:
    """Refuse a folder whose manifest vouches for files of another origin.

    Raises:
        UsageError: it does.
    """
    manifest = Manifest.load(lmdb.parent)
    others = manifest.files.keys() - {f"{lmdb.name}/{_DATA}"} if manifest else ()
    if manifest and others and manifest.vouched != "built":
        raise UsageError(
            f"{lmdb.parent}: it holds other files with a manifest of their own ({min(others)})",
            hint="name an LMDB in another folder",
        )


def _start(lmdb: Path, asked: Origin, places: Places) -> tuple[Path | None, Origin]:
    """What to extend, if anything, and what the result is made of.

    Raises:
        DatasetError: what is there is damaged, and the folders do not replace it.
    """
    origin = Origin.of(lmdb)
    if not (lmdb / _DATA).is_file() and origin is None:
        return None, asked
    problem = _damage(lmdb)
    if problem is None:
        before = origin or Origin((), False, _name_of(lmdb))
        folders = tuple(dict.fromkeys([*before.folders, *asked.folders]))
        return lmdb, replace(before, folders=folders, forced=before.forced or asked.forced)
    all_given = origin is not None and origin.base is None and set(origin.folders) <= set(asked.folders)
    if not (asked.forced or all_given):
        anew = "--force builds it anew, of these folders alone"
        raise DatasetError(f"{lmdb}: it is damaged: {problem}", hint=remedy(lmdb, places) or anew)
    say(f"note: {lmdb} is damaged ({problem}), so it is built anew")
    return None, asked


def _damage(lmdb: Path) -> str | None:
    manifest, name = Manifest.load(lmdb.parent), f"{lmdb.name}/{_DATA}"
    if manifest is not None and name in manifest.files:
        wrong = verify(manifest, only=[name], title="Verifying what is there")
        return str(wrong[0]) if wrong else None
    try:
        image_keys(lmdb, walk=True)
    except DatasetError as error:
        return str(error)
    return None


def _name_of(lmdb: Path) -> str:
    manifest = Manifest.load(lmdb.parent)
    return manifest.source.name if manifest and manifest.source else "an LMDB of unknown origin"


def _install(data: Path, lmdb: Path, origin: Origin) -> None:
    """Put a new file in the place of the old one; at no moment there is none, or a half one."""
    folder, name = lmdb.parent, f"{lmdb.name}/{_DATA}"
    flush(data)
    size = data.stat().st_size
    with Progress("Hashing", size) as bar:
        sha256 = file_digest(data, progress=bar.advance).hex()
    before = Manifest.load(folder)
    files = {**(before.files if before else {}), name: Entry(sha256, size)}
    manifest = Manifest(
        folder, dict(sorted(files.items())), "built", checks=dict(before.checks if before else {})
    )
    for path in manifest_files(folder):  # it must not speak of the file that comes
        path.unlink(missing_ok=True)
    lmdb.mkdir(exist_ok=True)
    rename_over(data, lmdb / _DATA)
    manifest.checks[name] = Check.now((lmdb / _DATA).stat())
    origin.save(lmdb, sha256)
    manifest.save()


def _compared(added: Added, keys: Sequence[str], given: Sequence[str], places: Places) -> Added:
    """Say how the keys fit the splits on disk."""
    known = frozenset(keys)
    rows: list[Row] = []
    splits, notes = {}, list(added.notes)
    for split in splits_on_disk(places.dataset):
        try:
            listed = read_rows(places.dataset.split(split))
        except DatasetError as error:
            notes.append(f"not compared with it: {error}")
            continue
        splits[split] = Coverage(len(listed), len(listed) - len(without_features(listed, known)))
        rows += listed
    if not splits:
        return replace(added, notes=tuple(notes))
    found, mistaken = matched(rows, known)
    unmatched = tuple(key for key in given if key not in found)
    return replace(added, splits=splits, unmatched=unmatched, mistaken=mistaken, notes=tuple(notes))
