"""Unpacking of a dataset archive into MMF's layout: annotations first, then images."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

from mmf_win.archives import Archive, Digest, open_archive
from mmf_win.console import format_size, summarize_list
from mmf_win.dataset.annotations import AnnotationRow, keep_rows, read_annotations, require_labels
from mmf_win.dataset.image_files import Flaw, choose_common_hint, describe_flaws, find_flaw
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
# Per split: annotations are read into memory. Those of the release have less than 2 MiB.
_MAX_ANNOTATIONS_BYTES = 16 << 20
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
        archive: The dataset archive.
        layout: The archive's members that make up the dataset.
        staging: Staging folder.
        digest: Updated with the bytes of the archive; complete on return.
        allow_missing: Exclude rows whose image is missing or unusable, instead of refusing the archive.
        selected_files: Images to write, by path below the dataset's root; None for all.
        converted_files: Files that an earlier conversion kept; None to check the images now.

    Returns:
        The rows of each split, including excluded ones; the image names of all usable images in the archive;
        and path below the dataset's root → manifest entry of each written file.

    Raises:
        ArchiveError: The archive is damaged or unsafe.
        DatasetError: The annotations and images are inconsistent.
        ResourceError: The images do not fit on the disk.
    """
    rows, table_images = _unpack_annotations(archive, layout, staging)
    if selected_files is None:
        rows = _require_splits(archive, layout, rows, staging, allow_missing=allow_missing)
    with _open_image_archive(archive, layout, staging, digest) as (holder, images):
        images = {**images, **(table_images if holder is archive else {})}
        by_member = {member: image for image, member in images.items()}
        # Tables may use several names for the same member.
        images = {image: member for member, image in by_member.items()}
        if not images and (allow_missing or not layout.tables):
            hint = "put the images into a folder img or into img.tar.gz, next to train.jsonl or below it"
            message = f"{archive.path}: contains annotations but no images"
            hint = incomplete_archive_hint(archive.path, hint, (member.name for member in archive.members))
            raise DatasetError(message, hint=hint)
        unmatched_rows = rows
        rows = {split: _match_image_names(listed, images, split) for split, listed in rows.items()}
        if not allow_missing:
            require_images(archive.path, rows, images, (member.name for member in holder.members))
        if layout.tables:
            require_unique_stems(images, chain(*rows.values()))
        targets = {member: f"images/{image}" for image, member in images.items()}
        if converted_files is not None:
            images = {image: member for image, member in images.items() if targets[member] in converted_files}
        targets = {member: name for member, name in targets.items() if selected_files is None or name in selected_files}
        files = extract_to_staging(holder, targets.get, staging, "Converting", digest if holder is archive else None)
    if converted_files is None:
        flaws = _drop_unusable_images(images, files, staging)
        images = {image: member for image, member in images.items() if image not in flaws}
        if not allow_missing and (counts := describe_missing_images(rows, images)):
            used = {row.display_img: flaws[row.img] for row in chain(*rows.values()) if row.img in flaws}
            message = f"{archive.path}: images cannot be used: {counts} ({describe_flaws(used)})"
            raise DatasetError(message, hint=f"{choose_common_hint(used)}, or exclude these memes with --allow-missing")
        if flaws:
            _log.warning("excluded unusable images: %d (%s)", len(flaws), describe_flaws(flaws))
    for split, listed in rows.items():
        name = f"annotations/{split}.jsonl"
        kept = [row for row in listed if row.img in images]
        if converted_files is None:
            _require_kept_rows(archive.path, split, listed, kept)
        if kept != unmatched_rows[split]:
            keep_rows(staging.new_dir / name, kept)
        files[name] = ManifestEntry(file_digest(staging.new_dir / name).hex(), (staging.new_dir / name).stat().st_size)
    return rows, images.keys(), files


def _require_kept_rows(source: Path, split: str, rows: Sequence[AnnotationRow], kept: Sequence[AnnotationRow]) -> None:
    if kept:
        return
    images = summarize_list([row.display_img for row in rows])
    hint = incomplete_archive_hint(source)
    if split != "train":
        hint += f", or delete the annotations of {split} and convert again"
    raise DatasetError(f"{source}: no row of {split} has a usable image ({images})", hint=hint)


def _match_image_names(rows: Sequence[AnnotationRow], images: Collection[str], split: str) -> list[AnnotationRow]:
    """Return the rows with image names as spelled by the files."""
    match = make_name_matcher(images)
    matches = {row.img: img for row in rows if row.img not in images and (img := match(row.img))}
    if matches:
        named, existing = next(iter(matches.items()))
        message = "%s: the names of %d images differ in case or Unicode form (using %a for %a)"
        _log.warning(message, split, len(matches), existing, named)
    return [replace(r, img=matches[r.img], original_img=r.display_img) if r.img in matches else r for r in rows]


def _drop_unusable_images(images: Iterable[str], files: dict[str, ManifestEntry], staging: Staging) -> dict[str, Flaw]:
    """Remove unusable images from ``files`` and the staging folder, and return their flaws."""
    flaws = {image: flaw for image in images if (flaw := find_flaw(staging.new_dir / "images" / image))}
    if readable := {image: flaw for image, flaw in flaws.items() if flaw.is_usable}:
        _log.warning("images that are damaged but readable: %d (%s)", len(readable), describe_flaws(readable))
    for image in flaws.keys() - readable:
        remove(staging.new_dir / "images" / image)
        del files[f"images/{image}"]
    return {image: flaw for image, flaw in flaws.items() if not flaw.is_usable}


def _require_splits(
    archive: Archive, layout: Layout, splits: dict[str, list[AnnotationRow]], staging: Staging, *, allow_missing: bool
) -> dict[str, list[AnnotationRow]]:
    """Require all splits of the dataset, unless ``allow_missing``; copies may be damaged or reduced.

    Returns:
        The splits that have rows.

    Raises:
        DatasetError: A split is missing or empty.
    """
    readme = ""
    sizes = {member.name: member.size for member in archive.members if member.problem is None}
    if layout.readme is not None and sizes.get(layout.readme, _MAX_README_BYTES) < _MAX_README_BYTES:
        extract_to_staging(archive, {layout.readme: "README"}.get, staging, "Reading", max_files=1)
        readme = (staging.new_dir / "README").read_text(encoding="utf-8", errors="replace")
        remove(staging.new_dir / "README")
    empty = [split for split, rows in splits.items() if not rows]
    if "train" in empty:
        raise DatasetError(f"{archive.path}: no memes in train", hint=incomplete_archive_hint(archive.path))
    if missing := [*find_missing_splits(layout, readme), *empty]:
        message = f"{archive.path}: splits are missing or empty: {', '.join(missing)}"
        if not allow_missing:
            hint = incomplete_archive_hint(archive.path)
            raise DatasetError(message, hint=f"{hint}, or skip these splits with --allow-missing")
        _log.warning("%s", message)
    for split in empty:
        remove(staging.new_dir / "annotations" / f"{split}.jsonl")
    return {split: rows for split, rows in splits.items() if rows}


def _unpack_annotations(
    archive: Archive, layout: Layout, staging: Staging
) -> tuple[dict[str, list[AnnotationRow]], dict[str, str]]:
    """Write the annotations; before the images, so that problems are reported within a second.

    Returns:
        The rows of each split, and image → member for images named by the user's tables.

    Raises:
        DatasetError: An annotation file is too large or invalid.
    """
    for name in layout.ignored_tables:
        _log.warning("ignoring %s, because the same split exists as .jsonl", name)
    sizes = {member.name: member.size for member in archive.members}
    for member in layout.annotations.values():
        if sizes[member] > _MAX_ANNOTATIONS_BYTES:
            limit = format_size(_MAX_ANNOTATIONS_BYTES)
            message = f"{format_size(sizes[member])} exceeds the limit of {limit} for annotations"
            raise DatasetError(f"{archive.path}: {member}: {message}")
    tables = layout.tables
    names = {split: f"annotations/{split}.jsonl" for split in layout.annotations}
    names |= {split: f"annotations/{split}.csv" for split in tables}
    targets = {member: names[split] for split, member in layout.annotations.items()}
    extract_to_staging(archive, targets.get, staging, "Reading the annotations", max_files=len(targets))
    files = {split: staging.new_dir / name for split, name in names.items()}
    full_names = {split: f"{archive.path}: {member}" for split, member in layout.annotations.items()}
    rows = {
        split: read_annotations(files[split], display_name=full_names[split]) for split in files if split not in tables
    }
    used_ids = {row.id for row in chain(*rows.values())}
    table_rows, images = read_tables(files, tables, archive.path, sizes, used_ids)
    for split, listed in (rows | table_rows).items():
        require_labels(full_names[split], split, listed, read_columns(files[split], full_names[split]))
    for split, listed in table_rows.items():
        remove(files[split])
        write_annotations(path := files[split].with_suffix(".jsonl"), listed)
        pairs = zip(read_annotations(path, display_name=full_names[split]), listed, strict=True)
        rows[split] = [replace(row, original_img=table_row.original_img) for row, table_row in pairs]
    return {split: rows[split] for split in layout.annotations}, images


@contextmanager
def _open_image_archive(
    archive: Archive, layout: Layout, staging: Staging, digest: Digest | None
) -> Iterator[tuple[Archive, dict[str, str]]]:
    """Open the archive that contains the images, which may be nested in the dataset archive.

    Yields:
        The archive, and image → member.

    Raises:
        ArchiveError: The nested archive is damaged; the error names the member of the dataset archive.
    """
    if layout.packed_images is None:
        yield archive, layout.images
        return
    name = Path(layout.packed_images).name
    extract_to_staging(archive, {layout.packed_images: name}.get, staging, "Unpacking the image archive", digest)
    path = staging.new_dir / name
    try:
        inner = open_archive(path)
        yield inner, find_image_members(member.name for member in inner.members)
    except ArchiveError as error:  # the user does not know the extracted file
        if error.prefix != f"{path}:":
            raise
        prefix = f"{archive.path}: member {layout.packed_images}:"
        raise ArchiveError(error.reason, hint=error.hint, prefix=prefix) from error
    remove(path)
