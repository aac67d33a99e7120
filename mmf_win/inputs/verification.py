"""Everything that a run reads, verified before it starts."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mmf_win.console import format_command, summarize_lines, summarize_list
from mmf_win.dataset.annotations import AnnotationFile, AnnotationRow, keep_rows, require_labels
from mmf_win.dataset.coverage import Coverage, load_coverage
from mmf_win.dataset.image_files import Flaw, find_unusable_images, list_checked_images, most_common_hint
from mmf_win.dataset.layout import image_name_hint
from mmf_win.errors import CheckpointError, DataError, DatasetError
from mmf_win.inputs.discovery import list_config_inputs, list_dataset_paths, list_feature_lmdbs, may_query_hub
from mmf_win.inputs.feature_lmdb import read_image_keys, rows_without_features
from mmf_win.inputs.input_files import InputFiles, Mirror, fetch_inputs
from mmf_win.integrity.manifest import (
    MANIFEST_NAME,
    Manifest,
    load_intact_manifest,
    load_manifest_notes,
    repair_command,
)
from mmf_win.integrity.verify import VerificationResult, find_damage
from mmf_win.paths import DatasetPaths, MmfPaths, data_dir_arguments
from mmf_win.unpacking.staging import require_complete_install
from mmf_win.upstream.config import DATASET, Settings
from mmf_win.upstream.overrides import escape_interpolation

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VerifiedInputs:
    """What a run reads, verified.

    Attributes:
        left_out: MMF's name of a split → its annotation file and the rows that stay, where some do not.
        data: MMF's name of a split with one annotation file → what is read of it, as in
            :class:`~mmf_win.protocol.AttemptRequest`.
        asks_hub: the run may have to ask the Hugging Face Hub for models.
    """

    kept_rows: Mapping[str, tuple[Path, list[AnnotationRow]]] = field(default_factory=dict)
    splits_read: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    may_query_hub: bool = True

    def write_filtered_annotations(self, folder: Path) -> Settings:
        """MMF's keys for a run that leaves rows out; writes its shorter annotation files into the folder."""
        if not self.kept_rows:
            return {}
        folder.mkdir(parents=True, exist_ok=True)
        annotations = {}
        for slot, (path, rows) in self.kept_rows.items():
            shorter = Path(shutil.copyfile(path, folder / path.name))
            keep_rows(shorter, rows)
            annotations[slot] = [escape_interpolation(shorter)]
        return {"dataset_config": {DATASET: {"annotations": annotations}}}


def verify_inputs(
    root: Path,
    places: MmfPaths,
    config: Settings,
    *,
    slots: Sequence[str],
    allow_missing: bool = False,
    offline: bool = False,
    record: bool = True,
    hint_arguments: Sequence[str] = (),
    loaded_annotations: Sequence[AnnotationFile] = (),
) -> VerifiedInputs:
    """Make sure that everything a run reads is there and intact.

    Args:
        root: the folder that holds the package ``mmf``.
        config: as :func:`mmf_win.upstream.config.resolve_config` gives it.
        slots: which of ``train``, ``val`` and ``test`` it reads.
        allow_missing: leave out the rows whose features or images are missing; who predicts needs every row.
        offline: nothing can be downloaded.
        record: write the hashes of files that have none yet.
        hint_words: the preset and the overrides that make the run read these files.
        known: annotation files that were read already.

    Raises:
        DataError: something is missing or damaged; it names the files.
        DatasetError: rows have no features, or no image.
    """
    _require_named_files(config, slots)
    _require_dataset(places, config["dataset"], slots)
    inputs = list_config_inputs(root, places, config, slots)
    findings = {each: each.verify() if record else _verify_in_dry_run(each) for each in inputs}
    # A library would get these by itself, once all of MMF is loaded.
    models = [each for each in inputs if findings[each].state == "missing" and each.source is not None]
    typed = [*hint_arguments, *data_dir_arguments(places.data_dir)]
    _require_intact([(each, findings[each]) for each in inputs if each not in models], typed)
    other_way = format_command("mmfw", "features", "fetch", "--source", "FOLDER", *typed)
    for each in models:
        _log.warning("%s is missing; looking for it", each.title)
        fetch_inputs(
            [each],
            places,
            Mirror(offline=offline, alternative_hint=f"`{other_way}` takes a copy from a folder"),
        )
    dataset = config["dataset"]
    by_path = {file.path: file for file in loaded_annotations}
    single = {
        s: paths[0] for s in slots if len(paths := list_dataset_paths(dataset, "annotations", [s])) == 1
    }
    files = {slot: by_path.get(path) or AnnotationFile(path) for slot, path in single.items()}
    rows = {slot: file.rows for slot, file in files.items()}
    for slot in files.keys() - {"test"}:
        if not rows[slot]:
            raise DatasetError(f"{files[slot].path}: there are no memes in it")
        require_labels(str(files[slot].path), slot, rows[slot])
    predicts, root = "train" not in slots, places.dataset.root
    kept = _find_kept_rows(root, dataset, files, predicts=predicts, allow_missing=allow_missing)
    return VerifiedInputs(
        {slot: (files[slot].path, some) for slot, some in kept.items()},
        {
            slot: _describe_split(places.dataset, file, len(kept.get(slot, rows[slot])))
            for slot, file in files.items()
        },
        may_query_hub(config, places),
    )


@cache
def _verify_in_dry_run(input_files: InputFiles) -> VerificationResult:
    """What the first training of a sweep's dry run finds, which must not write it down for the others."""
    return input_files.verify(record=False)


def _require_named_files(config: Settings, slots: Sequence[str]) -> None:
    """Refuse annotations and a checkpoint that are not there; MMF might take others."""
    for path in list_dataset_paths(config["dataset"], "annotations", slots):
        if not path.is_file():
            base = config["dataset"].get("data_dir")
            raise DatasetError(f"{path}: there is no such file", hint=f"relative paths begin at {base}")
    start = config["checkpoint"].get("resume_file")
    if start is not None and not Path(str(start)).is_file():
        raise CheckpointError(f"{start}: there is no such checkpoint", hint="see checkpoint.resume_file")


def _require_intact(
    findings: Sequence[tuple[InputFiles, VerificationResult]], arguments: Sequence[str]
) -> None:
    """Refuse files that are damaged or missing."""
    repair, get = (
        format_command("mmfw", "repair", *arguments),
        format_command("mmfw", "features", "fetch", *arguments),
    )
    for state, command in (("damaged", repair), ("missing", get)):
        wrong = [(each, found) for each, found in findings if found.state == state]
        for each, found in wrong:
            if (error := found.error or each.unrepairable_error(found)) is not None:
                of_demo = each.folder.is_relative_to(each.places.data_dir)
                if of_demo and {"demo", "demo_clip"}.intersection(arguments):
                    keep = "mmfw demo --keep" + (" --model clip" if "demo_clip" in arguments else "")
                    error.hint = f"{error.hint}, or `{keep}` makes it, in mmfw-demo/data"
                raise error
        if wrong:
            problems = (f"{found.title}: {problem}" for _, found in wrong for problem in found.problems)
            raise DataError("\n".join(problems), hint=f"`{command}`")


def _require_dataset(places: MmfPaths, dataset: Settings, slots: Sequence[str]) -> None:
    """Refuse annotations and images that changed since they were converted."""
    root = places.dataset.root
    annotations, images = (list_dataset_paths(dataset, kind, slots) for kind in ("annotations", "images"))
    if not any(path.is_relative_to(root) for path in (*annotations, *images)):
        return  # own memes
    wanted = {_relative_posix_path(path, root) for path in annotations}
    prefixes = tuple(f"{_relative_posix_path(path, root)}/" for path in images if dataset.get("use_images"))
    require_complete_install(root)
    manifest = Manifest.load(root)
    if manifest is None and load_manifest_notes(root):
        _log.warning("%s is missing, so the dataset is not verified", root / MANIFEST_NAME)
    if manifest is None:
        return
    names = [name for name in manifest.files if name in wanted or name.startswith(prefixes)]
    if wrong := find_damage(manifest, only_files=names, title="Verifying the dataset"):
        files = "\n".join(summarize_lines([*map(str, wrong)], 3))
        own = "annotations of your own need a name of their own"
        raise DataError(f"{root}: not as it was converted ({own}):\n{files}", hint=repair_command(root))


def _relative_posix_path(path: Path, folder: Path) -> str:
    with suppress(ValueError):  # on another drive of Windows
        return Path(os.path.relpath(path, folder)).as_posix()
    return path.as_posix()


def _find_kept_rows(
    root: Path, dataset: Settings, files: Mapping[str, AnnotationFile], *, predicts: bool, allow_missing: bool
) -> dict[str, list[AnnotationRow]]:
    """Compare the rows with what there is of them; return those that are left where some are missing."""
    absent: dict[str, list[AnnotationRow]] = {}
    flaws: dict[str, Flaw] = {}
    judged = list_checked_images(load_intact_manifest(root))
    keys = {lmdb: read_image_keys(lmdb) for lmdb in list_feature_lmdbs(dataset, list(files))}
    for slot, file in files.items():
        gone: list[AnnotationRow] = []
        if keys:
            own = keys.keys() & set(list_dataset_paths(dataset, "features", [slot]))
            gone = [row for lmdb in own for row in rows_without_features(file.rows, keys[lmdb])]
        elif dataset.get("use_images"):
            look = None if predicts else judged  # a worker that predicts names the meme and its table, too
            gone, unusable = _find_rows_without_image(
                file.rows, list_dataset_paths(dataset, "images", [slot]), look
            )
            flaws |= unusable
        if gone:
            absent[slot] = gone
    if not absent:
        return {}
    counts = ", ".join(
        f"{files[slot].path.stem} {len(gone)} of {len(files[slot].rows)} ("
        + summarize_list([f"{r.img}: {flaws[r.img].description}" if r.img in flaws else r.img for r in gone])
        + ")"
        for slot, gone in absent.items()
    )
    what = "region features are missing" if keys else "images are missing"
    message = f"{what}{' or cannot be used' if flaws else ''}: {counts}"
    hint = "a prediction needs every row: get complete ones" if predicts else None
    images = [row.img for gone in absent.values() for row in gone]
    if not keys:
        folders = list_dataset_paths(dataset, "images", list(files))
        there = (path.relative_to(root).as_posix() for root in folders for path in root.glob("img/*"))
        hint = image_name_hint([image for image in images if image not in flaws], there) or hint
    elif any("\\" in image for image in images):
        hint = "the paths of images need / instead of \\, on Windows too"
    if hint or not allow_missing:
        get = f"{most_common_hint(flaws)}, then convert again" if flaws else "get complete ones"
        raise DatasetError(message, hint=hint or f"{get}, or use --allow-missing to leave these memes out")
    _log.warning("%s; these rows are left out", message)
    kept = {}
    for slot, gone in absent.items():
        lost = set(gone)
        kept[slot] = [row for row in files[slot].rows if row not in lost]
        if not kept[slot]:
            raise DatasetError(f"{files[slot].path}: no row is left: {message}")
    return kept


def _describe_split(paths: DatasetPaths, file: AnnotationFile, kept_count: int) -> dict[str, Any]:
    """What is read of a split: rows may be left out now, and may have been at conversion."""
    rows, split = len(file.rows), file.path.stem
    is_own = _relative_posix_path(file.path, paths.annotations) != file.path.name
    full = None if is_own else load_coverage(paths, file).full_rows
    read = Coverage(split, kept_count, rows if full is None and kept_count < rows else full)
    return {**asdict(read), "sha256": file.sha256}


def _find_rows_without_image(
    rows: Sequence[AnnotationRow], folders: Sequence[Path], checked_paths: Collection[Path] | None
) -> tuple[list[AnnotationRow], dict[str, Flaw]]:
    """Return the rows without a picture, and what is wrong with those of their images that are there.

    Images are looked for in the listings of the folders, since a look at each file is slow; the ends of their
    files are read unless they are ``judged``, or that is None.
    """

    @cache
    def list_names(folder: str) -> set[str]:
        with suppress(OSError):
            return set(os.listdir(folder))  # noqa: PTH208 – only names are wanted
        return set()

    def has_image(folder: Path, image: str) -> bool:
        below, _, name = image.rpartition("/")
        return name in list_names(os.path.join(folder, below))  # noqa: PTH118 – many, some of them absolute

    there = {row.img: folder / row.img for row in rows for folder in folders if has_image(folder, row.img)}
    flaws = {} if checked_paths is None else find_unusable_images(there, checked_paths)
    return [r for r in rows if folders and (r.img not in there or r.img in flaws)], flaws
