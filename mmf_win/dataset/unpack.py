"""The parts of the dataset on their way from an archive to MMF's layout: annotations first, then images."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

from mmf_win.archives import Archive, Digest, open_archive
from mmf_win.console import format_size, summarize_list
from mmf_win.dataset.annotations import AnnotationRow, keep_rows, read_annotations, require_labels
from mmf_win.dataset.image_files import Flaw, describe_flaws, find_flaw, most_common_hint
from mmf_win.dataset.layout import (
    Layout,
    describe_missing_images,
    find_image_members,
    find_missing_splits,
    incomplete_archive_hint,
    make_name_matcher,
    require_images,
)
from mmf_win.dataset.user_memes import read_columns, read_tables, require_unique_stems, write_annotations
from mmf_win.errors import ArchiveError, DatasetError
from mmf_win.files import remove
from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.manifest import ManifestEntry
from mmf_win.unpacking.extract import extract_to_staging
from mmf_win.unpacking.staging import Staging

_MAX_README_BYTES = 1 << 20
_MAX_ANNOTATIONS_BYTES = (
    16 << 20
)  # a split; those of the release have less than 2 MiB, and are read into memory
_log = logging.getLogger(__name__)


def unpack_dataset(
    archive: Archive,
    layout: Layout,
    staging: Staging,
    digest: Digest | None = None,
    *,
    allow_missing: bool,
    selected_files: Collection[str] | None = None,
    converted_files: Collection[str] | None = None,
) -> tuple[dict[str, list[AnnotationRow]], Collection[str], dict[str, ManifestEntry]]:
    """Write annotations and images to the staging folder, in MMF's layout.

    Args:
        digest: is fed with the archive itself; complete when this has ended.
        allow_missing: leave out rows whose image is missing, or no picture, instead of refusing the archive.
        only: the images that are wanted, by their path below the dataset's root; None for all.
        converted: the files that an earlier conversion kept; None where the images are to be judged now.

    Returns:
        the rows of each split, also those that are left out; the names of all pictures in the archive, as the
        rows have them; and path below the dataset's root → what that file is.

    Raises:
        ArchiveError: the archive is damaged or hostile.
        DatasetError: the parts disagree.
        ResourceError: the images do not fit on the disk.
    """
    rows, own_images = _unpack_annotations(archive, layout, staging)
    if selected_files is None:
        rows = _require_splits(archive, layout, rows, staging, allow_missing=allow_missing)
    with _open_image_archive(archive, layout, staging, digest) as (holder, images):
        images = {**images, **(own_images if holder is archive else {})}
        by_member = {member: image for image, member in images.items()}
        images = {image: member for member, image in by_member.items()}  # a table may name one otherwise
        if not images and (allow_missing or not layout.tables):
            hint = "images are expected in a folder img or in img.tar.gz, beside train.jsonl or below it"
            message = f"{archive.path}: there are annotations in it, but no images"
            raise DatasetError(
                message, hint=incomplete_archive_hint(archive.path, hint, (m.name for m in archive.members))
            )
        written_rows = rows
        rows = {split: _match_image_names(listed, images, split) for split, listed in rows.items()}
        if not allow_missing:
            require_images(archive.path, rows, images, (member.name for member in holder.members))
        if layout.tables:
            require_unique_stems(images, chain(*rows.values()))
        targets = {member: f"images/{image}" for image, member in images.items()}
        if converted_files is not None:
            images = {image: member for image, member in images.items() if targets[member] in converted_files}
        wanted = {
            member: name
            for member, name in targets.items()
            if selected_files is None or name in selected_files
        }
        files = extract_to_staging(
            holder, wanted.get, staging, "Converting", digest if holder is archive else None
        )
    if converted_files is None:
        flaws = _remove_unusable_images(images, files, staging)
        images = {image: member for image, member in images.items() if image not in flaws}
        if not allow_missing and (counts := describe_missing_images(rows, images)):
            used = {row.display_img: flaws[row.img] for row in chain(*rows.values()) if row.img in flaws}
            message = f"{archive.path}: images cannot be used: {counts} ({describe_flaws(used)})"
            raise DatasetError(
                message, hint=f"{most_common_hint(used)}, or use --allow-missing to leave these memes out"
            )
        if flaws:
            _log.warning("images that cannot be used, left out: %d (%s)", len(flaws), describe_flaws(flaws))
    for split, listed in rows.items():
        name = f"annotations/{split}.jsonl"
        kept = [row for row in listed if row.img in images]
        if not kept and converted_files is None:
            images_text = summarize_list([row.display_img for row in listed])
            what = f"no row of {split} has a usable image ({images_text})"
            hint = incomplete_archive_hint(archive.path)
            if split != "train":
                hint += f", or delete the annotations of {split} and convert again"
            raise DatasetError(f"{archive.path}: {what}", hint=hint)
        if kept != written_rows[split]:
            keep_rows(staging.new_dir / name, kept)
        files[name] = ManifestEntry(
            file_digest(staging.new_dir / name).hex(), (staging.new_dir / name).stat().st_size
        )
    return rows, images.keys(), files


def _match_image_names(
    rows: Sequence[AnnotationRow], images: Collection[str], split: str
) -> list[AnnotationRow]:
    """Return the rows with the names of images as their files have them."""
    match = make_name_matcher(images)
    found = {row.img: img for row in rows if row.img not in images and (img := match(row.img))}
    if found:
        wanted, used = next(iter(found.items()))
        told = "%s: %d images have other names in case or Unicode form (%a is used for %a)"
        _log.warning(told, split, len(found), used, wanted)
    return [replace(r, img=found[r.img], original_img=r.display_img) if r.img in found else r for r in rows]


def _remove_unusable_images(
    images: Collection[str], files: dict[str, ManifestEntry], staging: Staging
) -> dict[str, Flaw]:
    """Return the images that cannot be used; they are taken out of ``files`` and the staging folder."""
    flaws = {image: flaw for image in images if (flaw := find_flaw(staging.new_dir / "images" / image))}
    if readable := {image: flaw for image, flaw in flaws.items() if flaw.is_usable}:
        _log.warning(
            "images that are damaged but can be read: %d (%s)", len(readable), describe_flaws(readable)
        )
    for image in flaws.keys() - readable:
        remove(staging.new_dir / "images" / image)
        del files[f"images/{image}"]
    return {image: flaw for image, flaw in flaws.items() if not flaw.is_usable}


def _require_splits(
    archive: Archive,
    layout: Layout,
    splits: dict[str, list[AnnotationRow]],
    staging: Staging,
    *,
    allow_missing: bool,
) -> dict[str, list[AnnotationRow]]:
    """The splits that have rows, unless the set lacks one, as a copy does that was damaged or cut down."""
    readme = ""
    sizes = {member.name: member.size for member in archive.members if member.problem is None}
    if layout.readme is not None and sizes.get(layout.readme, _MAX_README_BYTES) < _MAX_README_BYTES:
        extract_to_staging(archive, {layout.readme: "README"}.get, staging, "Reading", max_files=1)
        readme = (staging.new_dir / "README").read_text(encoding="utf-8", errors="replace")
        remove(staging.new_dir / "README")
    empty = [split for split, rows in splits.items() if not rows]
    if "train" in empty:
        raise DatasetError(
            f"{archive.path}: there are no memes in train", hint=incomplete_archive_hint(archive.path)
        )
    if missing := [*find_missing_splits(layout, readme), *empty]:
        message = f"{archive.path}: splits are missing or empty: {', '.join(missing)}"
        if not allow_missing:
            hint = (
                f"{incomplete_archive_hint(archive.path)}, or use --allow-missing to go without these splits"
            )
            raise DatasetError(message, hint=hint)
        _log.warning("%s", message)
    for split in empty:
        remove(staging.new_dir / "annotations" / f"{split}.jsonl")
    return {split: rows for split, rows in splits.items() if rows}


def _unpack_annotations(
    archive: Archive, layout: Layout, staging: Staging
) -> tuple[dict[str, list[AnnotationRow]], dict[str, str]]:
    """Write the annotations before the images: what is wrong with them shows within a second.

    Returned are the rows of each split; and image → member, for those that the user's own tables name.
    """
    for name in layout.ignored_tables:
        _log.warning("%s is left aside, since the same split is there as .jsonl", name)
    sizes = {member.name: member.size for member in archive.members}
    for member in layout.annotations.values():
        if sizes[member] > _MAX_ANNOTATIONS_BYTES:
            limit = format_size(_MAX_ANNOTATIONS_BYTES)
            message = f"{format_size(sizes[member])}, more than {limit}, which no annotations take"
            raise DatasetError(f"{archive.path}: {member}: {message}")
    tables = layout.tables
    names = {split: f"annotations/{split}.jsonl" for split in layout.annotations}
    names |= {split: f"annotations/{split}.csv" for split in tables}
    targets = {member: names[split] for split, member in layout.annotations.items()}
    extract_to_staging(archive, targets.get, staging, "Reading the annotations", max_files=len(targets))
    files = {split: staging.new_dir / name for split, name in names.items()}
    shown = {split: f"{archive.path}: {member}" for split, member in layout.annotations.items()}
    rows = {
        split: read_annotations(files[split], display_name=shown[split])
        for split in files
        if split not in tables
    }
    taken = {row.id for row in chain(*rows.values())}
    own, images = read_tables(files, tables, archive.path, sizes, taken)
    for split, listed in (rows | own).items():
        require_labels(shown[split], split, listed, read_columns(files[split], shown[split]))
    for split, listed in own.items():
        remove(files[split])
        write_annotations(path := files[split].with_suffix(".jsonl"), listed)
        pairs = zip(read_annotations(path, display_name=shown[split]), listed, strict=True)
        rows[split] = [replace(row, original_img=own_row.original_img) for row, own_row in pairs]
    return {split: rows[split] for split in layout.annotations}, images


@contextmanager
def _open_image_archive(
    archive: Archive, layout: Layout, staging: Staging, digest: Digest | None
) -> Iterator[tuple[Archive, dict[str, str]]]:
    """The archive that holds the images, which may be one inside the other, and image → member in it."""
    if layout.packed_images is None:
        yield archive, layout.images
        return
    packed = Path(layout.packed_images).name
    extract_to_staging(
        archive, {layout.packed_images: packed}.get, staging, "Unpacking the images' archive", digest
    )
    path = staging.new_dir / packed
    try:
        inner = open_archive(path)
        yield inner, find_image_members(member.name for member in inner.members)
    except ArchiveError as error:  # the user has never seen the file that it is about
        if error.prefix != f"{path}:":
            raise
        about = f"{archive.path}: member {layout.packed_images}:"
        raise ArchiveError(error.reason, hint=error.hint, prefix=about) from error
    remove(path)
