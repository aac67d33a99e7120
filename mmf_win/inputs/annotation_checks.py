"""What is odd about the memes of a training, as their annotations and the hashes of their images show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, combinations
from pathlib import Path

from mmf_win.console import summarize_list
from mmf_win.dataset.annotations import SPLITS, AnnotationRow, labels_of, read_annotations, splits_on_disk
from mmf_win.errors import DatasetError
from mmf_win.inputs.discovery import list_dataset_paths
from mmf_win.inputs.verification import VerifiedInputs
from mmf_win.integrity.manifest import Manifest
from mmf_win.paths import DatasetPaths
from mmf_win.protocol.check_result import CheckResult
from mmf_win.upstream.config import Settings

_MIN_LABEL_SHARE = 0.1
_UNFILTERED_INPUTS = VerifiedInputs()
_VALIDATION_LABELS_HINT = (
    "validate on memes of both labels: dataset_config.hateful_memes.annotations.val[0]=FILE"
)


def check_annotations(
    paths: DatasetPaths, dataset: Settings, inputs: VerifiedInputs = _UNFILTERED_INPUTS
) -> list[CheckResult]:
    """On the labels that are trained and validated on, and on memes that training, validation and test share.

    Of a ``dataset``, MMF's configuration, whose annotations are those of ``paths``, the published splits of
    validation and test count, too. These overlap by themselves: dev_unseen holds most of dev_seen, and those
    of the first phase are the seen ones. ``inputs`` has the rows that stay of annotation files of which some
    are left out.
    """
    read: dict[str, tuple[str, Sequence[AnnotationRow]]] = {}
    for slot in ("train", "val"):
        for path in list_dataset_paths(dataset, "annotations", [slot]):
            is_split = path.resolve().parent == paths.annotations.resolve()
            name = path.stem if is_split and path.stem not in read else str(path)
            rows = dict(inputs.kept_rows.values()).get(path) or read_annotations(path)
            read[f"{name} ({slot})" if name in read else name] = slot, rows
    found = [_check_balance(name, rows) for name, (_, rows) in read.items()]
    validated = {name: labels_of(rows) or [] for name, (slot, rows) in read.items() if slot == "val"}
    if len(set(chain(*validated.values()))) == 1:
        text = f"{', '.join(validated)}: one label only, so there is no AUROC, and no best.ckpt by it"
        found.append(CheckResult("error", "validation", text, _VALIDATION_LABELS_HINT))
    splits = splits_on_disk(paths)
    for name in SPLITS[1:] if not read.keys().isdisjoint(splits) else ():
        if name in splits and name not in read:
            with suppress(DatasetError):  # no training reads it
                read[name] = (
                    "test" if name.startswith("test") else "val",
                    read_annotations(paths.annotation_file(name)),
                )
    folders = list_dataset_paths(dataset, "images", ["train"])
    return found + _check_shared_memes(read, paths, folders[0] if folders else paths.images)


def _check_balance(name: str, rows: Sequence[AnnotationRow]) -> CheckResult:
    labels = labels_of(rows) or []
    share = sum(labels) / max(len(labels), 1)
    text = f"{name}: {100 * share:.0f} % of {len(rows):,} memes are hateful"
    if _MIN_LABEL_SHARE <= share <= 1 - _MIN_LABEL_SHARE:
        return CheckResult("ok", "balance", text)
    advice = "a model that always gives the same answer is right about the others; accuracy hides that"
    return CheckResult("warning" if 0 < share < 1 else "error", "balance", text, advice)


def _check_shared_memes(
    rows_by_split: Mapping[str, tuple[str, Sequence[AnnotationRow]]], paths: DatasetPaths, images: Path
) -> list[CheckResult]:
    """Memes with the same text and the same bytes of the image; either alone is a confounder, on purpose."""
    manifest = Manifest.load(paths.root)
    known = manifest.files if manifest and images.is_relative_to(paths.root) else {}
    below = f"{images.relative_to(paths.root).as_posix()}/" if known else ""
    memes: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for name, (_, rows) in rows_by_split.items():
        for row in rows:
            entry = known.get(below + row.img)
            memes[row.text, entry.sha256 if entry else row.img].setdefault(name, row.display_id)
    twice: dict[tuple[str, str], list[str]] = defaultdict(list)
    for ids in memes.values():
        for one, other in combinations(ids, 2):
            if rows_by_split[one][0] != rows_by_split[other][0]:
                same = ids[one] == ids[other]
                twice[one, other].append(ids[one] if same else f"{ids[one]} = {ids[other]}")
    return [
        CheckResult(
            "warning",
            "splits",
            f"memes both in {one} and in {other}: {len(ids)} ({summarize_list(ids)})",
            "the same image and text in both: a score on one of them counts what was learnt by heart",
            ids,
        )
        for (one, other), ids in twice.items()
    ] or [CheckResult("ok", "splits", f"no meme of one is in another: {', '.join(rows_by_split)}")]
