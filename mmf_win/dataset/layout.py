"""Where things are in an archive of the dataset, and whether all images are. Copies differ in their folders,
so names decide, in small or capital letters.

::

    data/                          or hateful_memes/, or none, or MMF's own layout
    ├── train.jsonl …              beside each other, in any folder; or train.csv …, of the user's own
    └── img/01235.png …            or img.tar.gz; images that a CSV names lie anywhere
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
_VALIDATION_FILE = re.compile(r"val(id(ation)?)?\.(csv|jsonl)", re.IGNORECASE)  # as some call dev
_SPLIT_FILE = re.compile(rf"\b({'|'.join(SPLITS)})\.jsonl\b")
_README = re.compile(r"readme(\.md|\.txt)?", re.IGNORECASE)
_PART_SUFFIX = re.compile(r"-\d{3}( \(\d+\))?$|[-_ .]part[-_ ]?\d+$", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(zip|7z|rar|tar|t?gz|t?bz2|t?xz|zst|[0-9]{3}|z[0-9]{2})$", re.IGNORECASE)
_MMF_ANNOTATIONS = "/datasets/hateful_memes/defaults/annotations"  # below a data folder
_PACKED_IMAGES = frozenset({"img.tar.gz", "img.tgz", "img.tar", "img.zip"})


@dataclass(frozen=True)
class Layout:
    """The parts of the dataset among an archive's members.

    Attributes:
        annotations: split → member.
        images: name as the annotations give it (``img/01235.png``) → member.
        packed_images: the member that is an archive of the images, where they are not members themselves.
        ignored: splits as CSV beside the same as JSON Lines.
        readme: the member beside the annotations that says what belongs to the set.
    """

    annotations: dict[str, str]
    images: dict[str, str]
    packed_images: str | None
    ignored_tables: tuple[str, ...] = ()
    readme: str | None = None

    @property
    def tables(self) -> dict[str, str]:
        """The splits that are CSV files."""
        return {split: name for split, name in self.annotations.items() if _is_table(name)}


def find_layout(source: Path, members: Sequence[Member], excluded_folders: Collection[Path] = ()) -> Layout:
    """Recognise the dataset by its members' names; those in the folders ``without`` are left aside.

    Raises DatasetError where there is no ``train.jsonl`` or ``train.csv``, or several, or an unknown split.
    """
    names = [member.name for member in members if not _is_litter(member.name)]
    names = [
        name for name in names if not any(folder in (source / name).parents for folder in excluded_folders)
    ]
    annotations, ignored = _find_annotations(source, names)
    if "train" not in annotations:
        raise DatasetError(
            f"{source}: this is not the Hateful Memes dataset: there is no train.jsonl or train.csv in it",
            hint=incomplete_archive_hint(source, f"it holds {summarize_list(names) or 'nothing'}", names),
        )
    folder = annotations["train"].rpartition("/")[0]
    beside = [name for name in names if name.rpartition("/")[0] == folder]
    if unknown := [name for name in beside if _VALIDATION_FILE.fullmatch(name.rpartition("/")[2])]:
        known = f"call it dev; splits are called {', '.join(SPLITS)}"
        raise DatasetError(f"{source}: {unknown[0]}: no split has this name", hint=known)
    images = find_image_members(names)
    inner = (name for name in names if name.rpartition("/")[2].lower() in _PACKED_IMAGES)
    packed = min(inner, key=_depth, default=None)
    readmes = (name for name in beside if _README.fullmatch(name.rpartition("/")[2]))
    return Layout(annotations, images, None if images else packed, ignored, next(readmes, None))


def find_image_members(names: Iterable[str]) -> dict[str, str]:
    """The images in the folder ``img``, the fullest if there are several: name from ``img/`` on → member."""
    folders: dict[str, dict[str, str]] = {}
    for name in names:
        parts = name.split("/")
        places = [at for at, part in enumerate(parts[:-1]) if part.lower() == "img"]
        if places and _is_picture(name):
            *_, at = places
            folders.setdefault("/".join(parts[:at]), {})["/".join(["img", *parts[at + 1 :]])] = name
    return max(folders.items(), key=lambda item: (len(item[1]), -_depth(item[0])), default=("", {}))[1]


def _is_picture(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in _IMAGE_SUFFIXES and not _is_litter(name)


def make_name_matcher(names: Collection[str]) -> Callable[[str], str | None]:
    """Return a function that finds a name among ``names``: as it is, or the only one that looks the same.

    Names that differ in case or in Unicode normal form look the same.
    """
    alike = group_colliding_names(names)

    def match(name: str) -> str | None:
        found = [name] if name in names else alike.get(collision_key(name), [])
        return found[0] if len(found) == 1 else None

    return match


def find_missing_splits(layout: Layout, readme: str) -> list[str]:
    """Return the splits that are missing: the README names them, or others of the release are there.

    The README of a release may also tell about the first phase.
    """
    is_release = _PHASE_2_SPLITS & (layout.annotations.keys() - layout.tables.keys())
    named = _PHASE_2_SPLITS if is_release else set(_SPLIT_FILE.findall(readme))
    return [split for split in SPLITS if split in named and split not in layout.annotations]


def describe_missing_images(splits: Mapping[str, Sequence[AnnotationRow]], images: Collection[str]) -> str:
    """Return how many images of each split are missing ("train 1 of 4, dev 2 of 2"); empty if none is."""
    missing = {split: sum(row.img not in images for row in rows) for split, rows in splits.items()}
    return ", ".join(f"{split} {count} of {len(splits[split])}" for split, count in missing.items() if count)


def require_images(
    source: Path,
    splits: Mapping[str, Sequence[AnnotationRow]],
    images: Mapping[str, str],
    members: Iterable[str],
) -> None:
    """Raise DatasetError where images of rows are missing; it counts them in each split, and names a few.

    The names are those of the user's tables; ``members`` are all files of the source.
    """
    if not (counts := describe_missing_images(splits, images)):
        return
    rows = [row for listed in splits.values() for row in listed]
    names = sorted({row.display_img for row in rows if row.img not in images})
    spare = sorted({name for name in members if _is_picture(name)} - {images.get(row.img) for row in rows})
    if any(f"/{member}".endswith(f"/{names[0]}") for member in spare):
        advice = f"{names[0]!a} is there, but images of JSON Lines belong in a folder img: move them into "
        advice += 'one, and write "img/…" into the rows'
    elif len(spare) >= len(names):
        advice = (
            f"{names[0]!a} is wanted, and no row names {spare[0]!a}: if only names are wrong, correct them; "
        )
        advice += "if the archive garbles names, unpack it with another program and convert the folder"
    else:
        advice = incomplete_archive_hint(source)
    message = f"{source}: images are missing: {counts} ({summarize_list(names)})"
    advice = image_name_hint(names, images) or advice
    raise DatasetError(message, hint=f"{advice}, or use --allow-missing to leave these memes out")


def incomplete_archive_hint(
    source: Path, default_hint: str = "get a complete copy", members: Iterable[str] = ()
) -> str:
    """Return the next step where something is missing; Google Drive makes several archives of one folder."""
    if inner := [name for name in members if _ARCHIVE.search(name)]:
        return CommandHint(f"unpack the archives in it ({summarize_list(inner)}) into one folder")
    if source.is_dir() or not _PART_SUFFIX.search(source.stem):
        return default_hint
    return CommandHint("unpack all archives of this download into one folder")


def image_name_hint(missing: Iterable[str], images: Iterable[str]) -> str | None:
    """What to write where ``img\\\\01235.png``, ``1235.png`` or ``D:/img/01235.png`` is missing, and
    ``img/01235.png`` is there.
    """
    there = {image.rpartition("/")[2].lstrip("0"): image for image in images}
    alike = group_colliding_names(images)
    for name in missing:
        if len(twins := alike.get(collision_key(name), [])) > 1:
            return f"{name!a} matches {' and '.join(map(ascii, twins))}: write one of these names"
        image = there.get(name.replace("\\", "/").rpartition("/")[2].lstrip("0"))
        if image is not None and image != name:
            return f'this image is there: write "{image}" where the annotations have {json.dumps(name)}'
    return None


def _find_annotations(source: Path, names: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The annotation files of the folder that holds most of them, the outermost if there are several."""
    folders: dict[str, dict[str, list[str]]] = {}
    for name in names:
        path = PurePosixPath(name)
        split = path.stem.lower()
        if split in SPLITS and path.suffix.lower() in (".csv", ".jsonl"):
            folders.setdefault(str(path.parent), {}).setdefault(split, []).append(name)
    whole = sorted(folder for folder, splits in folders.items() if "train" in splits and len(splits) > 1)
    whole = [folder for folder in whole if not folder.endswith(_MMF_ANNOTATIONS)] or whole
    if len(whole) > 1:
        several = f"{source}: several datasets are in it: {summarize_list(whole)}"
        raise DatasetError(several, hint="convert one of them, as a folder or archive of its own")
    best = max(folders.items(), key=lambda item: (len(item[1]), -_depth(item[0])), default=("", {}))[1]
    chosen = {split: min(best[split], key=_is_table) for split in SPLITS if split in best}
    rest = (name for found in best.values() for name in found)
    return chosen, tuple(name for name in rest if name not in chosen.values())


def _is_table(name: str) -> bool:
    return name.lower().endswith(".csv")


def _is_litter(name: str) -> bool:
    """Whether macOS has put this beside the real files, or mmfw has."""
    parts = name.split("/")
    return parts[0] == "__MACOSX" or parts[-1].startswith("._") or any(p.startswith(".mmfw-") for p in parts)


def _depth(name: str) -> int:
    return name.count("/")
