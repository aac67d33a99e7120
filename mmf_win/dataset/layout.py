"""Layout of a dataset archive: members that are annotations and images, and missing images.

Copies of the dataset differ in their folders, so members are found by name, ignoring case::

    data/                          or hateful_memes/, or no folder, or MMF's own layout
    ├── train.jsonl …              all in one folder; or train.csv … for user data
    └── img/01235.png …            or img.tar.gz; images that a CSV file names may be anywhere
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mmf_win.archives import Member
from mmf_win.archives.names import collision_key, group_colliding_names
from mmf_win.console import summarize_list
from mmf_win.dataset.annotations import SPLITS, AnnotationRow
from mmf_win.errors import DatasetError
from mmf_win.sniffing import CommandHint

_IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
_PHASE_2_SPLITS = frozenset(split for split in SPLITS if "seen" in split)
_VALIDATION_FILE = re.compile(r"val(id(ation)?)?\.(csv|jsonl)", re.IGNORECASE)  # other names for dev
_SPLIT_FILE = re.compile(rf"\b({'|'.join(SPLITS)})\.jsonl\b")
_README = re.compile(r"readme(\.md|\.txt)?", re.IGNORECASE)
_PART_SUFFIX = re.compile(r"-\d{3}( \(\d+\))?$|[-_ .]part[-_ ]?\d+$", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(zip|7z|rar|tar|t?gz|t?bz2|t?xz|zst|[0-9]{3}|z[0-9]{2})$", re.IGNORECASE)
_MMF_ANNOTATIONS = "/datasets/hateful_memes/defaults/annotations"  # below a data folder
_PACKED_IMAGES = frozenset({"img.tar.gz", "img.tgz", "img.tar", "img.zip"})


@dataclass(frozen=True)
class Layout:
    """Members of an archive that make up the dataset.

    Attributes:
        annotations: Split → member.
        images: Name in the annotations (``img/01235.png``) → member.
        packed_images: Member that is an archive of the images, if they are not members themselves.
        ignored_tables: Annotation files for splits that also exist as JSON Lines.
        readme: README next to the annotations; it lists the files of the dataset.
    """

    annotations: dict[str, str]
    images: dict[str, str]
    packed_images: str | None
    ignored_tables: tuple[str, ...] = ()
    readme: str | None = None

    @property
    def tables(self) -> dict[str, str]:
        """Splits that are CSV files."""
        return {split: name for split, name in self.annotations.items() if _is_table(name)}


def find_layout(source: Path, members: Sequence[Member], excluded_folders: Collection[Path] = ()) -> Layout:
    """Find the dataset by the names of members, except those in ``excluded_folders``.

    Returns:
        The layout.

    Raises:
        DatasetError: There is no ``train.jsonl`` or ``train.csv``, or several, or an unknown split.
    """
    names = [member.name for member in members if not _is_litter(member.name)]
    names = [name for name in names if not any(folder in (source / name).parents for folder in excluded_folders)]
    annotations, ignored = _find_annotations(source, names)
    if "train" not in annotations:
        raise DatasetError(
            f"{source}: not the Hateful Memes dataset: no train.jsonl or train.csv found",
            hint=incomplete_archive_hint(
                source, f"check the source; it contains {summarize_list(names) or 'nothing'}", names
            ),
        )
    folder = annotations["train"].rpartition("/")[0]
    siblings = [name for name in names if name.rpartition("/")[0] == folder]
    if unknown := [name for name in siblings if _VALIDATION_FILE.fullmatch(name.rpartition("/")[2])]:
        hint = f"rename it to dev; valid names are {', '.join(SPLITS)}"
        raise DatasetError(f"{source}: {unknown[0]}: not the name of a split", hint=hint)
    images = find_image_members(names)
    archives = (name for name in names if name.rpartition("/")[2].lower() in _PACKED_IMAGES)
    packed_images = min(archives, key=_depth, default=None)
    readmes = (name for name in siblings if _README.fullmatch(name.rpartition("/")[2]))
    return Layout(annotations, images, None if images else packed_images, ignored, next(readmes, None))


def find_image_members(names: Iterable[str]) -> dict[str, str]:
    """Return name from ``img/`` on → member, for images in the folder ``img`` with the most images."""
    folders: dict[str, dict[str, str]] = {}
    for name in names:
        parts = name.split("/")
        positions = [index for index, part in enumerate(parts[:-1]) if part.lower() == "img"]
        if positions and _is_picture(name):
            *_, index = positions
            folders.setdefault("/".join(parts[:index]), {})["/".join(["img", *parts[index + 1 :]])] = name
    return max(folders.items(), key=lambda item: (len(item[1]), -_depth(item[0])), default=("", {}))[1]


def _is_picture(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in _IMAGE_SUFFIXES and not _is_litter(name)


def make_name_matcher(names: Collection[str]) -> Callable[[str], str | None]:
    """Return a function that finds a name among ``names``, exactly or by the only colliding name.

    Names collide if they differ only in case or Unicode normal form.

    Returns:
        A function from a name to the matching name, or None.
    """
    groups = group_colliding_names(names)

    def match(name: str) -> str | None:
        matches = [name] if name in names else groups.get(collision_key(name), [])
        return matches[0] if len(matches) == 1 else None

    return match


def find_missing_splits(layout: Layout, readme: str) -> list[str]:
    """Return the missing splits: those in the README, or those of the release if other splits of it exist.

    The README of a release may also mention files of the first phase.

    Returns:
        Names of splits.
    """
    is_release = _PHASE_2_SPLITS & (layout.annotations.keys() - layout.tables.keys())
    expected = _PHASE_2_SPLITS if is_release else set(_SPLIT_FILE.findall(readme))
    return [split for split in SPLITS if split in expected and split not in layout.annotations]


def describe_missing_images(splits: Mapping[str, Sequence[AnnotationRow]], images: Collection[str]) -> str:
    """Return the missing images per split ("train 1 of 4, dev 2 of 2"), or "" if none is missing."""
    missing = {split: sum(row.img not in images for row in rows) for split, rows in splits.items()}
    return ", ".join(f"{split} {count} of {len(splits[split])}" for split, count in missing.items() if count)


def require_images(
    source: Path, splits: Mapping[str, Sequence[AnnotationRow]], images: Mapping[str, str], members: Iterable[str]
) -> None:
    """Refuse rows without images.

    Args:
        source: Archive or folder.
        splits: Rows of each split.
        images: Image name → member.
        members: Names of all files in the source.

    Raises:
        DatasetError: Images are missing; the error counts them per split and names a few as the user does.
    """
    if not (counts := describe_missing_images(splits, images)):
        return
    rows = [row for listed in splits.values() for row in listed]
    names = sorted({row.display_img for row in rows if row.img not in images})
    unnamed = sorted({name for name in members if _is_picture(name)} - {images.get(row.img) for row in rows})
    if any(f"/{member}".endswith(f"/{names[0]}") for member in unnamed):
        hint = f"move images such as {names[0]!a} into a folder img, as JSON Lines requires, "
        hint += 'and write "img/…" in the rows'
    elif len(unnamed) >= len(names):
        hint = f"correct the names if only they differ ({names[0]!a} is missing, {unnamed[0]!a} is not used); "
        hint += "if the archive garbles names, unpack it with another program and convert the folder"
    else:
        hint = incomplete_archive_hint(source)
    message = f"{source}: images are missing: {counts} ({summarize_list(names)})"
    hint = image_name_hint(names, images) or hint
    raise DatasetError(message, hint=f"{hint}, or exclude these memes with --allow-missing")


def incomplete_archive_hint(source: Path, default: str = "use a complete copy", members: Iterable[str] = ()) -> str:
    """Return a hint for missing parts; Google Drive splits the download of a folder into several archives."""
    if archives := [name for name in members if _ARCHIVE.search(name)]:
        return CommandHint(f"unpack the archives in it ({summarize_list(archives)}) into one folder")
    if source.is_dir() or not _PART_SUFFIX.search(source.stem):
        return default
    return CommandHint("unpack all archives of this download into one folder")


def image_name_hint(missing: Iterable[str], images: Iterable[str]) -> str | None:
    r"""Suggest the correct path (``img/01235.png``) for a missing one (``img\01235.png``, ``1235.png``)."""
    image_by_name = {image.rpartition("/")[2].lstrip("0"): image for image in images}
    groups = group_colliding_names(images)
    for name in missing:
        if len(candidates := groups.get(collision_key(name), [])) > 1:
            return f"{name!a} matches {' and '.join(map(ascii, candidates))}: write one of these names"
        image = image_by_name.get(name.replace("\\", "/").rpartition("/")[2].lstrip("0"))
        if image is not None and image != name:
            return f'write "{image}" instead of {json.dumps(name)} in the annotations'
    return None


def _find_annotations(source: Path, names: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the annotation files of the dataset: the folder with most of them, or its outermost one.

    Returns:
        Split → member, and the annotation files that are ignored because another file of the split is used.

    Raises:
        DatasetError: Several folders contain a dataset.
    """
    folders: dict[str, dict[str, list[str]]] = {}
    for name in names:
        path = PurePosixPath(name)
        split = path.stem.lower()
        if split in SPLITS and path.suffix.lower() in (".csv", ".jsonl"):
            folders.setdefault(str(path.parent), {}).setdefault(split, []).append(name)
    datasets = sorted(folder for folder, splits in folders.items() if "train" in splits and len(splits) > 1)
    datasets = [folder for folder in datasets if not folder.endswith(_MMF_ANNOTATIONS)] or datasets
    if len(datasets) > 1:
        message = f"{source}: contains several datasets: {summarize_list(datasets)}"
        raise DatasetError(message, hint="convert one of them as a separate folder or archive")
    candidates = max(folders.items(), key=lambda item: (len(item[1]), -_depth(item[0])), default=("", {}))[1]
    chosen = {split: min(candidates[split], key=_is_table) for split in SPLITS if split in candidates}
    other_files = (name for files in candidates.values() for name in files)
    return chosen, tuple(name for name in other_files if name not in chosen.values())


def _is_table(name: str) -> bool:
    return name.lower().endswith(".csv")


def _is_litter(name: str) -> bool:
    """Return whether macOS or mmfw created this member."""
    parts = name.split("/")
    return parts[0] == "__MACOSX" or parts[-1].startswith("._") or any(p.startswith(".mmfw-") for p in parts)


def _depth(name: str) -> int:
    return name.count("/")
