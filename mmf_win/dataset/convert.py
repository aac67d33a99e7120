"""From an archive of the dataset to MMF's layout, and damaged files rewritten from that archive.

Everything is written to a staging folder on the same disk, verified there, and moved into place at the end,
so a conversion that was killed leaves nothing that looks finished. The archive is only read.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from filecmp import cmp
from itertools import combinations
from pathlib import Path

from mmf_win.archives import Archive, PasswordCallback, open_archive
from mmf_win.console import format_command, summarize_list
from mmf_win.dataset.annotations import SPLITS, AnnotationRow
from mmf_win.dataset.coverage import SplitSummary
from mmf_win.dataset.layout import Layout, find_layout
from mmf_win.dataset.unpack import unpack_dataset
from mmf_win.errors import DatasetError
from mmf_win.files import link_or_copy
from mmf_win.integrity.manifest import (
    Manifest,
    ManifestSource,
    damaged_manifest_error,
    load_intact_manifest,
    load_manifest_notes,
    parse_notes,
)
from mmf_win.integrity.verify import find_damage
from mmf_win.paths import DatasetPaths, MmfPaths, data_dir_arguments
from mmf_win.unpacking.extract import install_repaired, install_staged, make_manifest
from mmf_win.unpacking.staging import (
    finish_installation,
    open_staging,
    require_complete_install,
    require_space,
)

_log = logging.getLogger(__name__)

# SHA-256 of the archives that Facebook and DrivenData published: MMF's mmf_cli/hm_convert.py,
# POSSIBLE_CHECKSUMS; the last one only in 1.0.0rc12
_PUBLISHED_SHA256 = frozenset(
    {
        "d8f1073f5fbf1b08a541cc2325fc8645619ab8ed768091fb1317d5c3a6653a77",
        "a424c003b7d4ea3f3b089168b5f5ea73b90a3ff043df4b8ff4d7ed87c51cb572",
        "6e609b8c230faff02426cf462f0c9528957b7884d68c60ebc26ff83846e5f80f",
        "c1363aae9649c79ae4abfdb151b56d3d170187db77757f3daa80856558ac367c",
    }
)


@dataclass(frozen=True)
class ConversionResult:
    """What a conversion has brought about, now or earlier.

    Attributes:
        shared_ids: how many memes, by id and image, two splits have in common: ``{"dev & test": 400}``.
        extra_images: how many of the images no split names.
        sha256: of the archive; None for a folder.
        known: whether that is the hash of a published archive; None for a folder.
        judged_images: whether all images were found to be pictures; earlier versions of mmfw did not look.
        already_done: whether an earlier conversion of the same archive was intact, and nothing was done.
    """

    splits: dict[str, SplitSummary]
    shared_ids: dict[str, int]
    images: int
    extra_images: int
    sha256: str | None
    known: bool | None
    already_done: bool
    seconds: float
    judged_images: bool = False

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> ConversionResult:
        """Return what a manifest remembers; raise DamagedManifest where a field is missing."""
        return parse_notes(cls, manifest.result, manifest.folder)


def convert(
    source: Path,
    places: MmfPaths,
    *,
    ask: PasswordCallback | None = None,
    force: bool = False,
    allow_missing: bool = False,
) -> ConversionResult:
    """Put the dataset in ``source`` where MMF looks for it, or repair it there if it was made of that.

    With ``force``, images and annotations that came from elsewhere are replaced; features and extras stay.
    With ``allow_missing``, rows whose image is missing are left out; otherwise the archive is refused.

    Raises:
        ArchiveError: the archive is damaged, hostile or none at all.
        DatasetError: it holds something else, its parts disagree, or there is another dataset already.
        PasswordError: the password is missing or wrong; nothing was written.
        ResourceError: it does not fit on the disk; nothing was written.
        InUseError: another conversion into the same folder is under way.
    """
    started = time.monotonic()
    source = source.absolute()
    paths, ours = places.dataset, _list_mmfw_folders(source, places)
    interrupted = not finish_installation(paths.root)
    known = load_manifest_notes(paths.root)
    same = known is not None and known.source is not None and known.source.is_same(source, exclude=ours)
    load = load_intact_manifest if same or force else Manifest.load
    listed = None if interrupted else load(paths.root)
    # One that somebody has changed tells which files are the user's, but not which are intact.
    manifest = None if listed is None or listed.was_changed else listed
    if manifest is not None and manifest.result and same and not force:
        repaired = repair_dataset(places, source, ask=ask)
        seconds = time.monotonic() - started
        return replace(ConversionResult.from_manifest(manifest), already_done=not repaired, seconds=seconds)
    archive = open_archive(source, ask)
    layout = find_layout(source, archive.members, ours)
    old = [file for split in SPLITS if (file := paths.annotation_file(split)).is_file()]
    if not (force or same or interrupted) and (old or (paths.images / "img").exists()):
        message = f"{paths.root}: there is a dataset already, and not known to be made from this archive"
        raise DatasetError(message, hint="--force replaces it; --data-dir chooses another folder")
    archive.check_password()
    made_of = ManifestSource.from_path(source, exclude=ours)
    require_space(paths.root, _required_bytes(archive, layout))
    with open_staging(paths.root) as here:
        digest = hashlib.sha256() if source.is_file() else None
        rows, images, files = unpack_dataset(archive, layout, here, digest, allow_missing=allow_missing)
        made_of = replace(made_of, sha256=None if digest is None else digest.hexdigest())
        named = {row.img for listed in rows.values() for row in listed}
        result = ConversionResult(
            splits={s: SplitSummary.from_rows(rows[s], images, own=s in layout.tables) for s in rows},
            shared_ids=_count_shared_ids(rows, images),
            images=len(images),
            extra_images=len(set(images) - named),
            sha256=made_of.sha256,
            known=None if made_of.sha256 is None else made_of.sha256 in _PUBLISHED_SHA256,
            already_done=False,
            seconds=time.monotonic() - started,
            judged_images=True,
        )
        new = make_manifest(paths.root, files, made_of, result=asdict(result))
        # The annotations of an earlier release must not stay; what the user put beside them does.
        stale = [f for f in old if listed is None or f"annotations/{f.name}" in listed.files]
        replaced = [paths.images / "img", *stale]
        if listed is not None or not (same or interrupted):
            _keep_user_files(paths, here.new_dir, listed)
        install_staged(here, new, obsolete_paths=[] if same and manifest is None else replaced)
        return result


def _list_mmfw_folders(source: Path, places: MmfPaths) -> tuple[Path, ...]:
    """Return the folders in a source folder that hold what mmfw and MMF have written."""
    data, written = places.data_dir, (places.cache_dir, places.save_dir)
    folders = (data / "datasets", data / "models", *written)
    return tuple(folder for folder in folders if source in folder.parents)


def _keep_user_files(paths: DatasetPaths, new: Path, manifest: Manifest | None) -> None:
    """Take the images that the user put beside those of the old dataset over to the new one.

    An image or annotation file of the user's that has the name of a new one gets another name. Raises
    DatasetError where there are some that the new one lacks, and no list tells whose they are.
    """
    converted = manifest.files if manifest else {}
    files = [*(paths.images / "img").rglob("*"), *paths.annotations.glob("*.jsonl")]
    own = [file.relative_to(paths.root) for file in files if file.is_file()]
    own = [name for name in own if name.as_posix() not in converted]
    lost = [name for name in own if name.parts[0] == "images" and not (new / name).exists()]
    if manifest is None and lost:
        raise DatasetError(
            f"{paths.images / 'img'}: {len(lost)} of its files would be lost "
            f"({summarize_list([name.name for name in lost])}), and no list tells which of them are yours",
            hint="move the folder away, and run the same command again",
        )
    for name in own if manifest else ():
        kept, number = name, 0
        while any(
            place.exists() and not cmp(paths.root / name, place, shallow=False)
            for place in (new / kept, paths.root / kept)
        ):
            number += 1
            kept = name.with_name(f"{name.name}.old-{number}")
        if kept != name or name in lost:
            (new / kept).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(paths.root / name, new / kept)
        if kept != name:
            _log.warning(
                "%s: your file was renamed to %s, since the new dataset has a file of this name",
                paths.root / name,
                kept.name,
            )


def _count_shared_ids(
    splits: Mapping[str, Sequence[AnnotationRow]], images: Collection[str]
) -> dict[str, int]:
    ids = {split: {(row.id, row.img) for row in rows if row.img in images} for split, rows in splits.items()}
    counts = {f"{a} & {b}": len(ids[a] & ids[b]) for a, b in combinations(ids, 2)}
    return {pair: count for pair, count in counts.items() if count}


def _required_bytes(archive: Archive, layout: Layout) -> int:
    """Bytes that the wanted members take; an archive inside is there twice for a while."""
    sizes = {member.name: member.size for member in archive.members}
    packed = 2 * sizes[layout.packed_images] if layout.packed_images else 0
    return packed + sum(sizes[name] for name in (*layout.annotations.values(), *layout.images.values()))


def repair_dataset(
    places: MmfPaths, archive: Path | None = None, *, ask: PasswordCallback | None = None
) -> list[str]:
    """Rewrite the files of the dataset that are damaged or missing, and end a conversion that was killed.

    Files that mmfw did not write, such as annotations of the user's own, stay as they are. The ``archive`` is
    what the dataset was converted from; without it, that is looked for where it lay then. Returned are the
    files that were written, relative to the dataset's root.

    Raises:
        DatasetError: no dataset was converted here, or the archive is not where it lay, and ``archive`` does
            not name it either.
        DamagedManifest: nothing tells which files are damaged; :func:`convert` rewrites all of them.
        ArchiveError, PasswordError, ResourceError: as for :func:`convert`; nothing was changed.
    """
    paths = places.dataset
    finish_installation(paths.root)
    manifest = load_dataset_manifest(paths)
    if manifest is None:
        message = "nothing tells what it was converted from, nor which of its files are damaged"
        again = format_command(
            "mmfw", "convert", "--zip", "ARCHIVE", "--force", *data_dir_arguments(places.data_dir)
        )
        raise DatasetError(message, hint=f"`{again}` writes it again")
    names = [found.path for found in find_damage(manifest, title="Verifying the dataset")]
    if not names:
        return []
    if manifest.was_changed:
        raise damaged_manifest_error(paths.root, "it was changed")
    source = archive or find_source_archive(manifest)
    _log.info("%s: missing or damaged: %s", paths.root, summarize_list(names))
    opened = open_archive(source, ask)
    layout = find_layout(source, opened.members, _list_mmfw_folders(source, places))
    opened.check_password()
    with open_staging(paths.root) as here:
        only, kept = set(names), manifest.files
        _, _, files = unpack_dataset(
            opened, layout, here, allow_missing=True, selected_files=only, converted_files=kept
        )
        install_repaired(here, manifest, files, names, source)
    _log.info("%s: rewrote what was damaged, from %s", paths.root, source)
    return names


def find_source_archive(manifest: Manifest | None, hint: str | None = None) -> Path:
    """What a dataset was converted from, where it lay then.

    Raises DatasetError where it is not there, or nothing tells where that is; ``hint`` is another way out.
    """
    by_name = "name it, or its folder, with --source"
    hint = f"{hint}, or {by_name}" if hint else by_name
    source = manifest.source if manifest else None
    if source is None:
        raise DatasetError("nothing tells what the dataset was converted from", hint=hint)
    if not Path(source.path).exists():
        raise DatasetError(f"the archive {source.name} is not where it was", hint=hint)
    return Path(source.path)


def load_dataset_manifest(paths: DatasetPaths) -> Manifest | None:
    """The manifest of the dataset; None where none was converted.

    Raises:
        DamagedManifest: the list of hashes is gone, or cannot be understood.
        UnfinishedInstallation: a conversion was killed amidst the moves to their places.
    """
    require_complete_install(paths.root)
    manifest = Manifest.load(paths.root)
    if manifest is None and load_manifest_notes(paths.root):
        raise damaged_manifest_error(paths.root, "it is missing")
    return manifest
