"""Everything that a run reads, verified before it starts."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mmf_win.console import first_few
from mmf_win.dataset.annotations import Row, count_rows, keep_rows, read_rows
from mmf_win.dataset.coverage import Coverage, coverage
from mmf_win.dataset.layout import other_name
from mmf_win.dataset.manifest import verify_dataset
from mmf_win.errors import (
    CheckpointError,
    DamagedFeatures,
    DamagedInputs,
    DatasetError,
    IncompleteDataset,
    MissingInputs,
    UsageError,
)
from mmf_win.inputs import caches
from mmf_win.inputs.keys import image_keys, without_features
from mmf_win.inputs.listing import Need, needs_of, paths_of, tell_mmf
from mmf_win.inputs.verify import verify_need
from mmf_win.integrity.finding import Finding
from mmf_win.paths import DatasetPaths, Places
from mmf_win.upstream.config import DATASET, Tree

_SHOWN = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeftOut:
    """An annotation file of which a run reads only a part.

    Attributes:
        path: the file.
        kept: the rows that stay.
    """

    path: Path
    kept: list[Row]


@dataclass(frozen=True)
class Inputs:
    """What a run reads, verified.

    Attributes:
        left_out: MMF's name of a split → what is read of its annotations, where that is not all.
        read: MMF's name of a split → how much of it is read, for those with one annotation file.
    """

    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    read: Mapping[str, Coverage] = field(default_factory=dict)

    @property
    def replaced_keys(self) -> list[str]:
        """MMF's keys that :meth:`settings` sets, which overrides must not set back."""
        return [f"dataset_config.{DATASET}.annotations.{slot}" for slot in self.left_out]

    def settings(self, folder: Path) -> Tree:
        """MMF's keys for a run that leaves rows out, whose shorter annotation files are written now.

        Args:
            folder: where they go.
        """
        if not self.left_out:
            return {}
        folder.mkdir(parents=True, exist_ok=True)
        annotations = {}
        for slot, part in self.left_out.items():
            shorter = folder / part.path.name
            shorter.write_bytes(part.path.read_bytes())
            keep_rows(shorter, part.kept)
            annotations[slot] = [str(shorter)]
        return {"dataset_config": {DATASET: {"annotations": annotations}}}


def check(
    root: Path,
    places: Places,
    config: Tree,
    *,
    slots: Sequence[str],
    allow_missing: bool = False,
    may_leave_out: bool = True,
    offline: bool = False,
    hint_words: Sequence[str] = (),
) -> Inputs:
    """Make sure that everything a run reads is there and intact.

    Args:
        root: the folder that holds the package ``mmf``.
        places: MMF's folders.
        config: as :func:`mmf_win.upstream.config.resolve` gives it.
        slots: which of ``train``, ``val`` and ``test`` it reads.
        allow_missing: leave out the rows whose features or images are missing.
        may_leave_out: whether that may be allowed: who predicts needs every row.
        offline: nothing can be downloaded.
        hint_words: the preset and the overrides that make the run read these files.

    Raises:
        DataError: something is missing or damaged; it names the files.
        DatasetError: rows have no features, or no image.
    """
    _require_named_files(config, slots)
    _require_dataset(places, config["dataset"], slots)
    needs = needs_of(root, places, config, slots)
    _require_known_weights(needs, config)
    findings = {need: verify_need(need, places) for need in needs}
    _require_intact(findings, places, offline=offline, words=hint_words)
    tell_mmf(needs)
    dataset = config["dataset"]
    left_out = _with_rows(needs, dataset, slots, allow_missing=allow_missing, may=may_leave_out)
    return Inputs(left_out, dict(_read(places.dataset, dataset, slots, left_out)))


def _require_named_files(config: Tree, slots: Sequence[str]) -> None:
    """Refuse annotations and a checkpoint that are not there; MMF might take others."""
    for path in paths_of(config["dataset"], "annotations", slots):
        if not path.is_file():
            base = config["dataset"].get("data_dir")
            raise DatasetError(f"{path}: there is no such file", hint=f"relative paths begin at {base}")
    start = config["checkpoint"].get("resume_file")
    if start is not None and not Path(str(start)).is_file():
        raise CheckpointError(f"{start}: there is no such checkpoint", hint="see checkpoint.resume_file")


def _require_known_weights(needs: Sequence[Need], config: Tree) -> None:
    """Refuse a key of pretrained weights that nothing stands for, since nothing could fetch them."""
    if any(need.kind == "weights" and not need.entry and not need.folder.exists() for need in needs):
        key = config["checkpoint"]["resume_zoo"]
        raise UsageError(
            f"checkpoint.resume_zoo={key}: neither a file nor a key of MMF's zoo",
            hint=f"its keys are in {config['env']['model_zoo']}",
        )


def _require_intact(
    findings: Mapping[Need, Finding], places: Places, *, offline: bool, words: Sequence[str]
) -> None:
    """Refuse files that are damaged or missing, but for what a library downloads by itself."""
    damaged = {need: finding for need, finding in findings.items() if finding.state == "damaged"}
    missing = {need: finding for need, finding in findings.items() if finding.state == "missing"}
    for need in [need for need in missing if need.library and not offline]:
        if not (need.is_of_hub and caches.hub_is_offline()):
            _log.warning("%s is not here yet; %s will download it", need.title, need.library)
            del missing[need]
    for need in damaged:
        if need.kind == "features" and need.folder != places.dataset.features:
            raise DamagedFeatures(f"{need.folder}: {_problems(damaged)}", lmdb=need.files[0].parent)
    if damaged:
        raise DamagedInputs(_problems(damaged), words=words, data_dir=places.data_dir)
    if missing:
        raise MissingInputs(_problems(missing), words=words, data_dir=places.data_dir)


def _problems(findings: Mapping[Need, Finding]) -> str:
    return "\n".join(f"{found.what}: {problem}" for found in findings.values() for problem in found.problems)


def _require_dataset(places: Places, dataset: Tree, slots: Sequence[str]) -> None:
    """Refuse annotations and images that changed since they were converted."""
    root = places.dataset.root
    read = [*paths_of(dataset, "annotations", slots), *paths_of(dataset, "images", slots)]
    if not any(path.is_relative_to(root) for path in read):
        return  # own memes
    wanted = {_below(path, root) for path in paths_of(dataset, "annotations", slots) if path.is_file()}
    folders = paths_of(dataset, "images", slots) if dataset.get("use_images") else []
    prefixes = tuple(f"{_below(path, root)}/" for path in folders)
    wrong = verify_dataset(places.dataset, only=lambda name: name in wanted or name.startswith(prefixes))
    if wrong:
        shown = "\n".join(str(difference) for difference in wrong[:_SHOWN])
        more = f"\n… and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        own = "annotations of your own need a name of their own"
        message = f"{root}: not as it was converted ({own}):\n{shown}{more}"
        raise DamagedInputs(message, words=["dataset"], data_dir=places.data_dir)


def _below(path: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # on another drive of Windows
        return path.as_posix()


def _with_rows(
    needs: Sequence[Need], dataset: Tree, slots: Sequence[str], *, allow_missing: bool, may: bool
) -> dict[str, LeftOut]:
    """Compare the rows with what there is of them; return what is left where some are missing."""
    annotations = {slot: paths_of(dataset, "annotations", [slot]) for slot in slots}
    rows = {slot: read_rows(p[0]) for slot, p in annotations.items() if len(p) == 1 and p[0].is_file()}
    for slot in rows.keys() - {"test"}:
        _require_labels(annotations[slot][0], rows[slot])
    absent: dict[str, list[Row]] = {}
    features = {need.folder / need.names[0] for need in needs if need.kind == "features"}
    folders = {path for path in paths_of(dataset, "features", list(rows)) if path / "data.mdb" in features}
    keys = {folder: image_keys(folder) for folder in folders}
    what = "region features" if features else "images"
    for slot, listed in rows.items():
        if features:
            own = keys.keys() & set(paths_of(dataset, "features", [slot]))
            gone = [row for folder in own for row in without_features(listed, keys[folder])]
        else:
            gone = _without_images(listed, paths_of(dataset, "images", [slot]))
        if gone:
            absent[slot] = gone
    if not absent:
        return {}
    counts = ", ".join(
        f"{annotations[slot][0].stem} {len(gone)} of {len(rows[slot])} "
        f"({first_few([row.img for row in gone])})"
        for slot, gone in absent.items()
    )
    message = f"{what} are missing: {counts}"
    if features and any("\\" in row.img for gone in absent.values() for row in gone):
        raise DatasetError(message, hint="the paths of images need / instead of \\, on Windows too")
    if not features:
        there = (
            path.relative_to(root).as_posix()
            for root in paths_of(dataset, "images", slots)
            for path in root.glob("img/*")
        )
        if hint := other_name((row.img for gone in absent.values() for row in gone), there):
            raise DatasetError(message, hint=hint)
    if not may:
        raise DatasetError(message, hint="a prediction needs every row: get complete ones")
    if not allow_missing:
        raise IncompleteDataset(message, hint="get complete ones")
    _log.warning("%s; these rows are left out", message)
    left_out = {}
    for slot, gone in absent.items():
        lines = {row.line for row in gone}
        kept = [row for row in rows[slot] if row.line not in lines]
        if not kept:
            raise DatasetError(f"{annotations[slot][0]}: no row is left: {message}")
        left_out[slot] = LeftOut(annotations[slot][0], kept)
    return left_out


def _read(
    paths: DatasetPaths, dataset: Tree, slots: Sequence[str], left_out: Mapping[str, LeftOut]
) -> Iterator[tuple[str, Coverage]]:
    """How much of each split is read: rows may be left out now, and may have been at conversion."""
    for slot in slots:
        files = paths_of(dataset, "annotations", [slot])
        if len(files) != 1 or not files[0].is_file():
            continue
        split, is_own = files[0].stem, _below(files[0], paths.annotations) != files[0].name
        there = Coverage(split, count_rows(files[0])) if is_own else coverage(paths, split)
        if slot in left_out:
            rows, full = len(left_out[slot].kept), there.full_rows
            there = replace(there, rows=rows, full_rows=there.rows if full is None else full)
        yield slot, there


def _require_labels(path: Path, rows: Sequence[Row]) -> None:
    """Refuse to train on, or to validate with, rows without labels."""
    if not rows:
        raise DatasetError(f"{path}: there are no memes in it")
    unlabelled = [row for row in rows if row.label is None]
    if unlabelled:
        raise DatasetError(
            f"{path}:{unlabelled[0].line}: no label, as {len(unlabelled)} of {len(rows)} rows",
            hint="training and validation need the label 0 or 1 in every row",
        )


def _without_images(rows: Sequence[Row], folders: Sequence[Path]) -> list[Row]:
    """The rows whose image is in none of the folders, by their listings: a look at each file is slow."""
    listings: dict[str, set[str]] = {}

    def is_there(folder: str, image: str) -> bool:
        below, _, name = image.rpartition("/")
        parent = os.path.join(folder, below)  # noqa: PTH118 – many, and an absolute path stays one
        if parent not in listings:
            try:
                listings[parent] = set(os.listdir(parent))  # noqa: PTH208 – only names are wanted
            except OSError:
                listings[parent] = set()
        return name in listings[parent]

    roots = [str(folder) for folder in folders]
    return [row for row in rows if roots and not any(is_there(root, row.img) for root in roots)]
