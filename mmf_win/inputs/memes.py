"""What is odd about the memes of a training, as their annotations and the hashes of their images show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path

from mmf_win.console import first_few
from mmf_win.dataset.annotations import Row, labels_of, read_rows, splits_on_disk
from mmf_win.dataset.remarks import Remark
from mmf_win.errors import DatasetError
from mmf_win.inputs.listing import paths_of
from mmf_win.integrity.manifest import Manifest
from mmf_win.paths import DatasetPaths
from mmf_win.upstream.config import Tree

_LOPSIDED = 0.1
# Published as two phases of one set: dev_unseen holds most of dev_seen, and dev and test are the seen ones.
_FAMILIES = ("dev", "test")


def remarks(paths: DatasetPaths, dataset: Tree) -> list[Remark]:
    """On the labels that are trained and validated on, and on memes that are in two splits.

    Of a ``dataset``, MMF's configuration, whose annotations are those of ``paths``, all splits are compared.
    """
    named = [path for slot in ("train", "val") for path in paths_of(dataset, "annotations", [slot])]
    files = {path.stem: path for path in named}
    read = {name: read_rows(path) for name, path in files.items()}
    found = [_balance(name, rows) for name, rows in read.items()]
    if any(path.parent == paths.annotations for path in named):
        for name in [name for name in splits_on_disk(paths) if name not in read]:
            with suppress(DatasetError):  # no training reads it
                read[name] = read_rows(paths.split(name))
    trained = {path.stem for path in paths_of(dataset, "annotations", ["train"])}
    folders = paths_of(dataset, "images", ["train"])
    return found + _in_two_splits(read, trained, paths, folders[0] if folders else paths.images)


def _balance(name: str, rows: Sequence[Row]) -> Remark:
    labels = labels_of(rows) or []
    share = sum(labels) / max(len(labels), 1)
    text = f"{name}: {100 * share:.0f} % of {len(rows):,} memes are hateful"
    if _LOPSIDED <= share <= 1 - _LOPSIDED:
        return Remark("ok", "balance", text)
    advice = "a model that always gives the same answer is right about the others; accuracy hides that"
    return Remark("warning" if 0 < share < 1 else "error", "balance", text, advice)


def _in_two_splits(
    read: Mapping[str, Sequence[Row]], trained: Collection[str], paths: DatasetPaths, images: Path
) -> list[Remark]:
    """Memes with the same text and the same bytes of the image; either alone is a confounder, on purpose."""

    def is_published(one: str, other: str) -> bool:
        family = one.partition("_")[0]
        is_trained = (one in trained) != (other in trained)
        return family == other.partition("_")[0] and family in _FAMILIES and not is_trained

    manifest = Manifest.load(paths.root)
    known = manifest.files if manifest and images.is_relative_to(paths.root) else {}
    below = f"{images.relative_to(paths.root).as_posix()}/" if known else ""
    memes: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for name, rows in read.items():
        for row in rows:
            entry = known.get(below + row.img)
            memes[row.text, entry.sha256 if entry else row.img].setdefault(name, row.shown_id)
    twice: dict[tuple[str, str], list[str]] = defaultdict(list)
    for ids in memes.values():
        for one, other in combinations(ids, 2):
            if not is_published(one, other):
                same = ids[one] == ids[other]
                twice[one, other].append(ids[one] if same else f"{ids[one]} = {ids[other]}")
    return [
        Remark(
            "warning",
            "splits",
            f"memes both in {one} and in {other}: {len(ids)} ({first_few(ids)})",
            "the same image and text in both: a score on one of them counts what was learnt by heart",
            ids,
        )
        for (one, other), ids in twice.items()
    ] or [Remark("ok", "splits", f"no meme of one is in another: {', '.join(read)}")]
