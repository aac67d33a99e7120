"""Checks of the memes of a training for unbalanced labels and for memes shared between splits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, combinations
from pathlib import Path

from mmf_win.console import summarize_list
from mmf_win.dataset.annotations import SPLITS, AnnotationRow, collect_labels, list_splits, read_annotations
from mmf_win.errors import DatasetError
from mmf_win.inputs.discovery import list_dataset_paths
from mmf_win.inputs.verification import VerifiedInputs
from mmf_win.integrity.manifest import Manifest
from mmf_win.paths import DatasetPaths
from mmf_win.protocol.check_result import CheckResult
from mmf_win.upstream.config import Settings

_MIN_LABEL_SHARE = 0.1
_ALL_ROWS = VerifiedInputs()
_VALIDATION_LABELS_HINT = "validate on memes of both labels: dataset_config.hateful_memes.annotations.val[0]=FILE"


def check_annotations(paths: DatasetPaths, dataset: Settings, inputs: VerifiedInputs = _ALL_ROWS) -> list[CheckResult]:
    """Check the labels of the training and validation memes, and look for memes shared between splits.

    If the annotation files belong to the dataset in ``paths``, the published validation and test splits are
    compared, too. Overlaps between two validation or two test splits are not reported: dev_unseen contains
    most of dev_seen, and the splits of the first phase are the seen splits.

    Args:
        paths: The dataset in MMF's layout.
        dataset: MMF's configuration of the dataset.
        inputs: Verified inputs, with the rows that remain in annotation files from which rows are excluded.

    Returns:
        At least one result for each check.
    """
    rows_by_split: dict[str, tuple[str, Sequence[AnnotationRow]]] = {}
    for slot in ("train", "val"):
        for path in list_dataset_paths(dataset, "annotations", [slot]):
            is_split = path.resolve().parent == paths.annotations.resolve()
            name = path.stem if is_split and path.stem not in rows_by_split else str(path)
            rows = dict(inputs.kept_rows.values()).get(path) or read_annotations(path)
            rows_by_split[f"{name} ({slot})" if name in rows_by_split else name] = slot, rows
    results = [_check_balance(name, rows) for name, (_, rows) in rows_by_split.items()]
    val_labels = {name: collect_labels(rows) or [] for name, (slot, rows) in rows_by_split.items() if slot == "val"}
    if len(set(chain(*val_labels.values()))) == 1:
        text = f"{', '.join(val_labels)}: only one label, so there is no AUROC and no best.ckpt"
        results.append(CheckResult("error", "validation", text, _VALIDATION_LABELS_HINT))
    existing_splits = list_splits(paths)
    for name in SPLITS[1:] if not rows_by_split.keys().isdisjoint(existing_splits) else ():
        if name in existing_splits and name not in rows_by_split:
            with suppress(DatasetError):  # the training does not read this split
                slot = "test" if name.startswith("test") else "val"
                rows_by_split[name] = slot, read_annotations(paths.annotation_file(name))
    folders = list_dataset_paths(dataset, "images", ["train"])
    return results + _check_shared_memes(rows_by_split, paths, folders[0] if folders else paths.images)


def _check_balance(name: str, rows: Sequence[AnnotationRow]) -> CheckResult:
    labels = collect_labels(rows) or []
    share = sum(labels) / max(len(labels), 1)
    text = f"{name}: {100 * share:.0f} % of {len(rows):,} memes are hateful"
    if _MIN_LABEL_SHARE <= share <= 1 - _MIN_LABEL_SHARE:
        return CheckResult("ok", "balance", text)
    hint = "do not rely on accuracy: a constant prediction is correct for most of these memes"
    return CheckResult("warning" if 0 < share < 1 else "error", "balance", text, hint)


def _check_shared_memes(
    rows_by_split: Mapping[str, tuple[str, Sequence[AnnotationRow]]], paths: DatasetPaths, images: Path
) -> list[CheckResult]:
    """Look for memes with the same text and the same image bytes in splits of different use.

    Text or image alone may repeat: the dataset contains such benign confounders on purpose.

    Returns:
        A warning for each pair of splits that shares memes, or a single positive result.
    """
    manifest = Manifest.load(paths.root)
    image_entries = manifest.files if manifest and images.is_relative_to(paths.root) else {}
    prefix = f"{images.relative_to(paths.root).as_posix()}/" if image_entries else ""
    memes: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for name, (_, rows) in rows_by_split.items():
        for row in rows:
            entry = image_entries.get(prefix + row.img)
            memes[row.text, entry.sha256 if entry else row.img].setdefault(name, row.display_id)
    shared_ids: dict[tuple[str, str], list[str]] = defaultdict(list)
    for ids in memes.values():
        for first, second in combinations(ids, 2):
            if rows_by_split[first][0] != rows_by_split[second][0]:
                same_id = ids[first] == ids[second]
                shared_ids[first, second].append(ids[first] if same_id else f"{ids[first]} = {ids[second]}")
    return [
        CheckResult(
            "warning",
            "splits",
            f"memes in both {first} and {second}: {len(ids)} ({summarize_list(ids)})",
            "remove them from one of the two; scores on memorized memes are too high",
            ids,
        )
        for (first, second), ids in shared_ids.items()
    ] or [CheckResult("ok", "splits", f"no shared memes: {', '.join(rows_by_split)}")]
