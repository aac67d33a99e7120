"""Verification of all inputs of a run before it starts."""

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
from mmf_win.dataset.image_files import Flaw, choose_common_hint, find_unusable_images, list_checked_images
from mmf_win.dataset.layout import image_name_hint
from mmf_win.errors import CheckpointError, DataError, DatasetError
from mmf_win.inputs.discovery import list_config_inputs, list_dataset_paths, list_feature_lmdbs, may_query_hub
from mmf_win.inputs.feature_lmdb import find_rows_without_features, read_image_keys
from mmf_win.inputs.input_files import InputFiles, Mirror, fetch_inputs
from mmf_win.integrity.manifest import MANIFEST_NAME, Manifest, load_intact_manifest, load_manifest_notes, repair_hint
from mmf_win.integrity.verify import VerificationResult, find_damage
from mmf_win.paths import DatasetPaths, MmfPaths, data_dir_arguments
from mmf_win.unpacking.staging import require_complete_install
from mmf_win.upstream.config import DATASET, Settings
from mmf_win.upstream.overrides import escape_interpolation

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VerifiedInputs:
    """Verified input files of a run.

    Attributes:
        kept_rows: For each of MMF's splits with excluded rows, the annotation file and the used rows.
        splits_read: For each of MMF's splits with a single annotation file, what is read from it, as in
            :class:`~mmf_win.protocol.AttemptRequest`.
        may_query_hub: The run may need the Hugging Face Hub.
    """

    kept_rows: Mapping[str, tuple[Path, list[AnnotationRow]]] = field(default_factory=dict)
    splits_read: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    may_query_hub: bool = True

    def write_filtered_annotations(self, folder: Path) -> Settings:
        """Write annotation files without the excluded rows, and return MMF's settings that name them."""
        if not self.kept_rows:
            return {}
        folder.mkdir(parents=True, exist_ok=True)
        annotations = {}
        for slot, (path, rows) in self.kept_rows.items():
            filtered_file = Path(shutil.copyfile(path, folder / path.name))
            keep_rows(filtered_file, rows)
            annotations[slot] = [escape_interpolation(filtered_file)]
        return {"dataset_config": {DATASET: {"annotations": annotations}}}


def verify_inputs(  # noqa: PLR0913 - three of them are switches of one command
    root: Path,
    mmf_paths: MmfPaths,
    config: Settings,
    *,
    slots: Sequence[str],
    allow_missing: bool = False,
    offline: bool = False,
    record: bool = True,
    hint_arguments: Sequence[str] = (),
    loaded_annotations: Sequence[AnnotationFile] = (),
) -> VerifiedInputs:
    """Verify that all inputs of a run exist and are intact; download missing models.

    Args:
        root: Folder that contains the package ``mmf``.
        mmf_paths: Folders of MMF.
        config: Result of :func:`mmf_win.upstream.config.resolve_config`.
        slots: MMF's splits that are read: ``train``, ``val`` or ``test``.
        allow_missing: Exclude rows without features or image; a prediction needs every row.
        offline: Download nothing.
        record: Record the hashes of files that have none yet.
        hint_arguments: Preset and overrides, for the commands in hints.
        loaded_annotations: Annotation files that were already read.

    Returns:
        The verified inputs.

    Raises:
        DataError: Inputs are missing or damaged; the error names the files.
        DatasetError: An annotation file has no rows or lacks labels, or rows have no features or no image.
        MmfEnvironmentError: A model is missing and cannot be downloaded.
    """
    _require_named_files(config, slots)
    _require_dataset(mmf_paths, config["dataset"], slots)
    inputs = list_config_inputs(root, mmf_paths, config, slots)
    results = {item: item.verify() if record else _verify_in_dry_run(item) for item in inputs}
    # Libraries would download these themselves, but only after all of MMF is loaded.
    models = [item for item in inputs if results[item].state == "missing" and item.source is not None]
    arguments = [*hint_arguments, *data_dir_arguments(mmf_paths.data_dir)]
    _require_intact([(item, results[item]) for item in inputs if item not in models], arguments)
    fetch_command = format_command("mmfw", "features", "fetch", "--source", "FOLDER", *arguments)
    mirror = Mirror(offline=offline, alternative_hint=f"copy it from a folder with `{fetch_command}`")
    for item in models:
        _log.warning("%s not found; fetching it", item.title)
        fetch_inputs([item], mmf_paths, mirror)
    dataset = config["dataset"]
    by_path = {file.path: file for file in loaded_annotations}
    path_by_slot = {s: paths[0] for s in slots if len(paths := list_dataset_paths(dataset, "annotations", [s])) == 1}
    files = {slot: by_path.get(path) or AnnotationFile(path) for slot, path in path_by_slot.items()}
    rows = {slot: file.rows for slot, file in files.items()}
    for slot in files.keys() - {"test"}:
        if not rows[slot]:
            raise DatasetError(f"{files[slot].path}: no memes found")
        require_labels(str(files[slot].path), slot, rows[slot])
    kept_by_slot = _find_kept_rows(
        mmf_paths.dataset.root, dataset, files, predicts="train" not in slots, allow_missing=allow_missing
    )
    return VerifiedInputs(
        {slot: (files[slot].path, kept_rows) for slot, kept_rows in kept_by_slot.items()},
        {
            slot: _describe_split(mmf_paths.dataset, file, len(kept_by_slot.get(slot, rows[slot])))
            for slot, file in files.items()
        },
        may_query_hub(config, mmf_paths),
    )


@cache
def _verify_in_dry_run(input_files: InputFiles) -> VerificationResult:
    """Verify without recording, once for all runs of a sweep's dry run."""
    return input_files.verify(record=False)


def _require_named_files(config: Settings, slots: Sequence[str]) -> None:
    """Refuse missing annotation files and a missing checkpoint; MMF might use others instead.

    Raises:
        DatasetError: An annotation file is missing.
        CheckpointError: The checkpoint is missing.
    """
    for path in list_dataset_paths(config["dataset"], "annotations", slots):
        if not path.is_file():
            base = config["dataset"].get("data_dir")
            raise DatasetError(f"{path}: file not found", hint=f"check the path; relative paths start at {base}")
    checkpoint = config["checkpoint"].get("resume_file")
    if checkpoint is not None and not Path(str(checkpoint)).is_file():
        raise CheckpointError(f"{checkpoint}: checkpoint not found", hint="check checkpoint.resume_file")


def _require_intact(results: Sequence[tuple[InputFiles, VerificationResult]], arguments: Sequence[str]) -> None:
    """Refuse damaged or missing inputs.

    Raises:
        DataError: Inputs are damaged or missing.
    """
    repair_command = format_command("mmfw", "repair", *arguments)
    fetch_command = format_command("mmfw", "features", "fetch", *arguments)
    for state, command in (("damaged", repair_command), ("missing", fetch_command)):
        affected = [(item, result) for item, result in results if result.state == state]
        for item, result in affected:
            if (error := result.error or item.unrepairable_error(result)) is not None:
                is_in_data_dir = item.folder.is_relative_to(item.mmf_paths.data_dir)
                if is_in_data_dir and {"demo", "demo_clip"}.intersection(arguments):
                    demo_command = "mmfw demo --keep" + (" --model clip" if "demo_clip" in arguments else "")
                    error.hint = f"{error.hint}, or run `{demo_command}` to create it in mmfw-demo/data"
                raise error
        if affected:
            problems = (f"{result.title}: {problem}" for _, result in affected for problem in result.problems)
            raise DataError("\n".join(problems), hint=f"run `{command}`")


def _require_dataset(mmf_paths: MmfPaths, dataset: Settings, slots: Sequence[str]) -> None:
    """Refuse annotations and images that changed since the conversion.

    Raises:
        DataError: Files are damaged or missing.
    """
    root = mmf_paths.dataset.root
    annotations, images = (list_dataset_paths(dataset, kind, slots) for kind in ("annotations", "images"))
    if not any(path.is_relative_to(root) for path in (*annotations, *images)):
        return  # user data, or another dataset
    annotation_names = {_relative_posix_path(path, root) for path in annotations}
    prefixes = tuple(f"{_relative_posix_path(path, root)}/" for path in images if dataset.get("use_images"))
    require_complete_install(root)
    manifest = Manifest.load(root)
    if manifest is None and load_manifest_notes(root):
        _log.warning("%s is missing, so the dataset is not verified", root / MANIFEST_NAME)
    if manifest is None:
        return
    names = [name for name in manifest.files if name in annotation_names or name.startswith(prefixes)]
    if damage := find_damage(manifest, only_files=names, title="Verifying the dataset"):
        files = "\n".join(summarize_lines([*map(str, damage)], 3))
        hint = f"{repair_hint(root)}; save your own annotations under a new name"
        raise DataError(f"{root}: changed since conversion:\n{files}", hint=hint)


def _relative_posix_path(path: Path, folder: Path) -> str:
    with suppress(ValueError):  # on another drive on Windows
        return Path(os.path.relpath(path, folder)).as_posix()
    return path.as_posix()


def _find_kept_rows(
    root: Path, dataset: Settings, files: Mapping[str, AnnotationFile], *, predicts: bool, allow_missing: bool
) -> dict[str, list[AnnotationRow]]:
    """Find rows without features or image.

    Returns:
        For each split with such rows, the remaining rows.

    Raises:
        DatasetError: Rows are missing, and ``allow_missing`` is False; or no row of a split remains.
    """
    missing_by_slot: dict[str, list[AnnotationRow]] = {}
    flaws: dict[str, Flaw] = {}
    checked_paths = list_checked_images(load_intact_manifest(root))
    keys_by_lmdb = {lmdb: read_image_keys(lmdb) for lmdb in list_feature_lmdbs(dataset, list(files))}
    for slot, file in files.items():
        missing: list[AnnotationRow] = []
        if keys_by_lmdb:
            lmdbs = keys_by_lmdb.keys() & set(list_dataset_paths(dataset, "features", [slot]))
            missing = [row for lmdb in lmdbs for row in find_rows_without_features(file.rows, keys_by_lmdb[lmdb])]
        elif dataset.get("use_images"):
            folders = list_dataset_paths(dataset, "images", [slot])
            # A predicting worker reports unusable images itself.
            missing, unusable = _find_rows_without_image(file.rows, folders, None if predicts else checked_paths)
            flaws |= unusable
        if missing:
            missing_by_slot[slot] = missing
    if not missing_by_slot:
        return {}
    counts = ", ".join(
        f"{files[slot].path.stem} {len(missing)} of {len(files[slot].rows)} ("
        + summarize_list([f"{r.img}: {flaws[r.img].description}" if r.img in flaws else r.img for r in missing])
        + ")"
        for slot, missing in missing_by_slot.items()
    )
    subject = "region features are missing" if keys_by_lmdb else "images are missing"
    message = f"{subject}{' or cannot be used' if flaws else ''}: {counts}"
    hint = "use a complete copy; a prediction needs every row" if predicts else None
    images = [row.img for missing in missing_by_slot.values() for row in missing]
    if not keys_by_lmdb:
        folders = list_dataset_paths(dataset, "images", list(files))
        available = [path.relative_to(folder).as_posix() for folder in folders for path in folder.glob("img/*")]
        hint = image_name_hint([image for image in images if image not in flaws], available) or hint
    elif any("\\" in image for image in images):
        hint = "write image paths with / instead of \\, on Windows too"
    if hint or not allow_missing:
        advice = f"{choose_common_hint(flaws)}, then convert again" if flaws else "use a complete copy"
        raise DatasetError(message, hint=hint or f"{advice}, or exclude these memes with --allow-missing")
    _log.warning("%s; these rows are excluded", message)
    kept = {}
    for slot, missing in missing_by_slot.items():
        missing_set = set(missing)
        kept[slot] = [row for row in files[slot].rows if row not in missing_set]
        if not kept[slot]:
            raise DatasetError(f"{files[slot].path}: no rows remain: {message}")
    return kept


def _describe_split(paths: DatasetPaths, file: AnnotationFile, kept_count: int) -> dict[str, Any]:
    """Return the coverage of a split, including rows excluded at conversion, and the file's SHA-256."""
    rows, split = len(file.rows), file.path.stem
    is_user_file = _relative_posix_path(file.path, paths.annotations) != file.path.name
    full_rows = None if is_user_file else load_coverage(paths, file).full_rows
    coverage = Coverage(split, kept_count, rows if full_rows is None and kept_count < rows else full_rows)
    return {**asdict(coverage), "sha256": file.sha256}


def _find_rows_without_image(
    rows: Sequence[AnnotationRow], folders: Sequence[Path], checked_paths: Collection[Path] | None
) -> tuple[list[AnnotationRow], dict[str, Flaw]]:
    """Find rows whose image is missing or unusable.

    Images are looked up in folder listings, which is faster than a system call for each image.

    Args:
        rows: Rows of an annotation file.
        folders: Image folders.
        checked_paths: Images that need no check; None to check no image.

    Returns:
        The rows without a usable image, and the flaws of existing images.
    """

    @cache
    def list_names(folder: str) -> set[str]:
        with suppress(OSError):
            return set(os.listdir(folder))  # noqa: PTH208 – only the names are needed
        return set()

    def has_image(folder: Path, image: str) -> bool:
        subfolder, _, name = image.rpartition("/")
        return name in list_names(os.path.join(folder, subfolder))  # noqa: PTH118 – faster for many paths, some of them absolute

    existing = {row.img: folder / row.img for row in rows for folder in folders if has_image(folder, row.img)}
    flaws = {} if checked_paths is None else find_unusable_images(existing, checked_paths)
    return [r for r in rows if folders and (r.img not in existing or r.img in flaws)], flaws
