"""The files that mmfw has fetched, unpacked, built or read so far, whatever configuration reads them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from mmf_win.errors import DataError, MmfError, UsageError
from mmf_win.inputs import caches
from mmf_win.inputs.listing import Kind, Need, hub_model, resnet152
from mmf_win.inputs.verify import read_elsewhere
from mmf_win.integrity.manifest import SUMS, Manifest
from mmf_win.paths import Places
from mmf_win.unpacking.staging import is_unfinished, staging_folder
from mmf_win.upstream.install import find_mmf
from mmf_win.upstream.zoo import DATASETS, MODELS, Zoo


def needs_on_disk(places: Places) -> list[Need]:
    """What lies in the data folder, and what was read in the caches of others."""
    folders: set[Path] = set()
    for here, below, names in os.walk(places.data_dir):
        below[:] = [name for name in below if not name.startswith(".mmfw-")]
        if SUMS in names or Path(here) == places.dataset.features or is_unfinished(Path(here)):
            folders.add(Path(here))
    needs = [need for folder in sorted(folders - {places.dataset.root}) for need in _listed(folder, places)]
    elsewhere = (path for path in map(Path, read_elsewhere(places).files) if not _is_of_others(path, places))
    # Where a whole folder is gone, its owner has removed it.
    shared = (need for need in _shared(elsewhere) if any(path.is_file() for path in need.files))
    return [*needs, *shared]


def _is_of_others(path: Path, places: Places) -> bool:
    """Whether a file lies in another data folder; all share the cache folder, which lists what was read."""
    datasets = ((parent / "datasets" / "hateful_memes").is_dir() for parent in path.parents)
    return not path.is_relative_to(places.data_dir) and any(datasets)


def with_source(need: Need, places: Places) -> Need:
    """The same files, with where to download them, as far as the zoo of the installed MMF tells."""
    if need.entry or not need.has_manifest:
        return need
    part = {places.dataset.features: "features", places.dataset.root / "extras": "extras"}.get(need.folder)
    try:
        datasets, models = (os.environ.get(f"MMF_{kind}_ZOO") for kind in ("DATASET", "MODEL"))
        zoo = Zoo(find_mmf().root, places, datasets or DATASETS, models or MODELS)
        entry = zoo.dataset(part) if part else zoo.model(need.folder.name)
    except (MmfError, UsageError):
        return need
    return replace(need, entry=entry) if entry and (part or entry.folder == need.folder) else need


def _listed(folder: Path, places: Places) -> Iterator[Need]:
    """The files that the folder's manifest lists, and region features that have none."""
    kind: Kind = "weights"
    names: tuple[str, ...] = ()
    data = "detectron.lmdb/data.mdb"
    try:
        if manifest := Manifest.load(folder) or Manifest.load(staging_folder(folder)):
            names = tuple(manifest.files)
            kind = "features" if manifest.basis == "built" else kind
        elif (folder / data).is_file():
            names = (data,)
    except DataError:  # which verifying them tells
        names = (data if (folder / data).is_file() else SUMS,)
    if folder == places.dataset.features or kind == "features":
        title = "region features" if folder == places.dataset.features else folder.name
        yield from (Need("features", title, folder, (name,)) for name in names)
    elif folder == places.dataset.root / "extras":
        yield Need("extras", "vocabulary", folder, names)
    elif names:
        yield Need(kind, folder.relative_to(places.data_dir).as_posix(), folder, names)


def _shared(paths: Iterable[Path]) -> Iterator[Need]:
    """What was read in folders of others, by the folder."""
    by_folder: dict[Path, list[str]] = {}
    for path in paths:
        by_folder.setdefault(path.parent, []).append(path.name)
    for folder, names in by_folder.items():
        if folder.parent.name == "snapshots":
            model = folder.parents[1].name.removeprefix("models--").replace("--", "/")
            if folder == caches.hub_snapshot(model):
                yield hub_model(model, "bert" if set(names) & set(caches.BERT_WEIGHTS) else "tokenizer")
                continue
        resnet = resnet152(folder)
        if resnet.names[0] in names:
            yield resnet
        others = [name for name in names if name not in resnet.names]
        if others:
            yield Need("other", str(folder), folder, tuple(others))
