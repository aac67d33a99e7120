"""The files that mmfw has fetched, unpacked, built or read so far, whatever configuration reads them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from mmf_win.errors import DataError
from mmf_win.inputs import hub
from mmf_win.inputs.given import Input
from mmf_win.inputs.ledger import read_ledger
from mmf_win.inputs.listing import resnet152, vocabularies
from mmf_win.inputs.unpacked import RegionFeatures, Unpacked
from mmf_win.integrity.manifest import SUMS, Manifest, noted
from mmf_win.paths import Places
from mmf_win.unpacking.staging import is_unfinished, staging_folder


def inputs_on_disk(places: Places) -> list[Input]:
    """What lies in the data folder, and what was read in the caches of others."""
    folders: set[Path] = set()
    for here, below, names in os.walk(places.data_dir):
        below[:] = [name for name in below if not name.startswith(".mmfw-")]
        if SUMS in names or Path(here) == places.dataset.features or is_unfinished(Path(here)):
            folders.add(Path(here))
    found = [each for folder in sorted(folders - {places.dataset.root}) for each in _listed(folder, places)]
    elsewhere = (path for path in map(Path, read_ledger(places.cache_dir).files) if _is_here(path, places))
    # Where a whole folder is gone, its owner has removed it.
    shared = (each for each in _shared(elsewhere, places) if any(path.is_file() for path in each.files()))
    return [*found, *shared]


def _is_here(path: Path, places: Places) -> bool:
    """Whether a file lies in no other data folder; all share the cache folder, which lists what was read."""
    datasets = ((parent / "datasets" / "hateful_memes").is_dir() for parent in path.parents)
    return path.is_relative_to(places.data_dir) or not any(datasets)


def _listed(folder: Path, places: Places) -> Iterator[Input]:
    """The files that the folder's manifest lists, and region features that have none."""
    names: tuple[str, ...] = ()
    manifest = None
    is_built = is_damaged = False
    data = "detectron.lmdb/data.mdb"
    try:
        if manifest := Manifest.load(folder) or Manifest.load(staging_folder(folder)):
            names = tuple(manifest.files)
            is_built = manifest.basis == "built"
        elif (folder / data).is_file():
            names = (data,)
    except DataError:  # which verifying them tells
        known = noted(folder)
        names = (data,) if (folder / data).is_file() else tuple(known.checks if known else ())
        is_damaged = True
    if folder == places.dataset.features or is_built:
        title = "region features" if folder == places.dataset.features else folder.name
        for name in names:
            features = RegionFeatures(title, folder, places, (name,))
            # Files without a list are taken as they are only where their archive is gone.
            yield features if manifest else features.with_source()
    elif folder == places.dataset.root / "extras":
        yield vocabularies(places, names)
    elif names or is_damaged:
        yield Unpacked(folder.relative_to(places.data_dir).as_posix(), folder, places, names)


def _shared(paths: Iterable[Path], places: Places) -> Iterator[Input]:
    """What was read in folders of others, by the folder."""
    by_folder: dict[Path, set[str]] = {}
    for path in paths:
        by_folder.setdefault(path.parent, set()).add(path.name)
    for folder, names in by_folder.items():
        if (model := hub.name_of(folder)) is not None:
            yield hub.model(model, places, weights=bool(names & set(hub.WEIGHTS)))
            continue
        resnet = resnet152(folder, places)
        its_names = names & set(resnet.names)
        if its_names:
            yield resnet
        if others := names - its_names:
            yield Input(str(folder), folder, places, tuple(sorted(others)))
