"""Whether all that mmfw has ever written is whole: dataset, downloads, checkpoints and MMF itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from mmf_win.console import as_typed
from mmf_win.dataset.manifest import load_manifest
from mmf_win.errors import DataError, MmfError
from mmf_win.inputs.added import remedy
from mmf_win.inputs.caches import git_id_in_name, hash_in_name, hub_cache
from mmf_win.inputs.ledger import Ledger
from mmf_win.integrity import FIRST_READING, SUMS, Manifest, verify
from mmf_win.paths import Places
from mmf_win.runs.checkpoints import listed
from mmf_win.runs.history import all_runs
from mmf_win.upstream.install import find, source_of, was_set_up
from mmf_win.upstream.install import verify as verify_mmf

State: TypeAlias = Literal["ok", "not vouched for", "broken"]
"""``not vouched for``: it is as it was found one day, or nothing is known of it."""

_NOTHING = "nothing"


@dataclass(frozen=True)
class Part:
    """Something that mmfw has written.

    Attributes:
        what: it is, for people.
        path: where it lies.
        state: see :data:`State`.
        against: what it was compared with.
        problems: what is wrong, a line for each file.
        cure: the command that mends it, or what else to do; None where nothing is wrong.
    """

    what: str
    path: str
    state: State
    against: str
    problems: tuple[str, ...] = ()
    cure: str | None = None


def verify_all(places: Places, *, full: bool = False) -> Iterator[Part]:
    """Verify one part after the other, with a progress bar for each that takes a while.

    What is not there is passed over. Checkpoints are read whole each time, of all else only what was touched
    since it was last found right.

    Args:
        places: MMF's folders.
        full: read everything.
    """
    yield from _dataset(places, full)
    yield from _downloads(places, full)
    yield from _runs(places)
    yield from _mmf()


def _dataset(places: Places, full: bool) -> Iterator[Part]:
    paths = places.dataset
    what, where = "dataset", str(paths.root)
    try:
        manifest = load_manifest(paths)
        wrong = verify(manifest, full=full, title="Verifying the dataset") if manifest else []
    except DataError as error:
        yield Part(what, where, "broken", _NOTHING, (str(error),), error.hint)
        return
    if manifest is None:
        if paths.annotations.is_dir():
            yield Part(what, where, "not vouched for", _NOTHING)
    elif wrong:
        archive = manifest.source.name if manifest.source else "ARCHIVE"
        cure = as_typed("mmfw", "convert", "--zip", archive, *places.data_option)
        yield Part(what, where, "broken", manifest.verified_against, tuple(map(str, wrong)), cure)
    else:
        yield _right(what, where, manifest)


def _downloads(places: Places, full: bool) -> Iterator[Part]:
    """Features, weights and what else was fetched: the folders that have a manifest, wherever they are."""
    for folder in _folders(places):
        what = _title(folder, places)
        try:
            manifest = Manifest.load(folder)
            assert manifest is not None
            wrong = verify(manifest, full=full, title=f"Verifying {what}")
        except DataError as error:
            yield Part(what, str(folder), "broken", _NOTHING, (str(error),), error.hint)
            continue
        if wrong:
            cure = as_typed("mmfw", "features", "repair", *places.data_option)
            if manifest.basis == "built":
                cure = remedy((folder / wrong[0].path).parent, places)
            yield Part(what, str(folder), "broken", manifest.verified_against, tuple(map(str, wrong)), cure)
        else:
            yield _right(what, str(folder), manifest)
    yield from _shared(places, full)
    features = places.dataset.features
    if (features / "detectron.lmdb").is_dir() and not (features / SUMS).exists():
        yield Part(_title(features, places), str(features), "not vouched for", _NOTHING)


def _shared(places: Places, full: bool) -> Iterator[Part]:
    """What runs have read in folders of others, such as the caches of transformers and torchvision."""
    ledger = Ledger(places)
    if not (files := [path for path in ledger.paths if path.is_file()]):
        return
    what, where = "BERT, ResNet and the like", str(hub_cache())
    wrong = ledger.verify(files, full=full)
    vouched = all(hash_in_name(path) or git_id_in_name(path) for path in files)
    against = "the hashes in their names" if vouched else FIRST_READING
    if wrong:
        cure = as_typed("mmfw", "features", "repair", *places.data_option)
        yield Part(what, where, "broken", against, tuple(map(str, wrong)), cure)
    else:
        yield Part(what, where, "ok" if vouched else "not vouched for", against)


def _folders(places: Places) -> list[Path]:
    """Every folder with a manifest in the data folder, and MMF's cache folder if it has one itself."""
    found = {places.cache_dir} if (places.cache_dir / SUMS).is_file() else set()
    for here, folders, names in os.walk(places.data_dir):
        folders[:] = [name for name in folders if not name.startswith(".mmfw-")]
        if SUMS in names:
            found.add(Path(here))
    return sorted(found - {places.dataset.root})


def _title(folder: Path, places: Places) -> str:
    if folder.parent == places.dataset.root:
        return folder.name
    return folder.relative_to(places.data_dir).as_posix() if folder != places.cache_dir else "MMF's cache"


def _runs(places: Places) -> Iterator[Part]:
    for run in all_runs(places.save_dir):
        found = listed(run)
        problems = tuple(
            f"{checkpoint.name}: {checkpoint.problem}" for checkpoint in found if checkpoint.problem
        )
        against = "the checksums that torch wrote"
        if problems:
            cure = "delete these files; `mmfw train --resume last` goes on from the newest that is whole"
            yield Part(f"run {run.id}", str(run.checkpoints), "broken", against, problems, cure)
        elif found:
            yield Part(f"run {run.id}", str(run.checkpoints), "ok", against)


def _mmf() -> Iterator[Part]:
    try:
        installed = find()
    except MmfError as error:
        if was_set_up():
            yield Part("MMF", "", "broken", _NOTHING, (str(error),), error.hint)
        return
    what, where = f"MMF {installed.version}", str(installed.root)
    if source_of(installed) is None:
        yield Part(what, where, "not vouched for", "nothing: it is a copy of your own")
        return
    problems = tuple(verify_mmf(installed))
    against = f"commit {installed.commit[:12]}" if installed.commit else "the RECORD of its wheel"
    yield Part(
        what, where, "broken" if problems else "ok", against, problems, "mmfw setup" if problems else None
    )


def _right(what: str, where: str, manifest: Manifest) -> Part:
    state: State = "not vouched for" if manifest.basis == "recorded" else "ok"
    return Part(what, where, state, manifest.verified_against)
