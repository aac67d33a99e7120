"""Conversion of a dataset archive to MMF's layout, and repair of damaged files from that archive.

All files are written to a staging folder on the same disk, verified, and moved into place at the end, so a
killed conversion leaves nothing that looks complete. The archive is only read.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from mmf_win.records import stored_as, to_stored
from mmf_win.unpacking.extract import install_repaired, install_staged, make_manifest
from mmf_win.unpacking.staging import finish_installation, open_staging, require_complete_install, require_space

_log = logging.getLogger(__name__)

# SHA-256 of the archives published by Facebook and DrivenData, from POSSIBLE_CHECKSUMS in MMF's
# mmf_cli/hm_convert.py; the last one only in 1.0.0rc12.
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
    """Result of a conversion, now or earlier.

    Attributes:
        splits: Summary of each split.
        shared_ids: Number of memes, by id and image, that two splits share: ``{"dev & test": 400}``.
        images: Number of images.
        extra_images: Number of images that are in no split.
        sha256: SHA-256 of the archive; None for a folder.
        is_published: Whether this is the hash of a published archive; None for a folder.
        already_done: An earlier conversion of the same archive was intact, and nothing was written.
        seconds: Duration.
        judged_images: All images were checked; earlier versions of mmfw did not check them.
    """

    splits: dict[str, SplitSummary]
    shared_ids: dict[str, int]
    images: int
    extra_images: int
    sha256: str | None
    is_published: bool | None = field(metadata=stored_as("known"))
    already_done: bool
    seconds: float
    judged_images: bool = False

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> ConversionResult:
        """Load the result from a manifest; raise ``DamagedManifestError`` if a field is missing."""
        return parse_notes(cls, manifest.result, manifest.folder)


def convert(
    source: Path,
    mmf_paths: MmfPaths,
    *,
    ask: PasswordCallback | None = None,
    force: bool = False,
    allow_missing: bool = False,
) -> ConversionResult:
    """Convert the dataset in ``source`` to MMF's layout, or repair it if it was converted from there.

    Args:
        source: Archive or folder.
        mmf_paths: Folders of MMF.
        ask: Returns the password of an encrypted archive.
        force: Replace images and annotations from another source; features and extras are kept.
        allow_missing: Exclude rows without an image, instead of refusing the archive.

    Returns:
        The result.

    Raises:
        ArchiveError: The archive is damaged or unsafe, or not an archive.
        DatasetError: The content is not the dataset or is inconsistent, or another dataset exists.
        PasswordError: The password is missing or wrong; nothing was written.
        ResourceError: The files do not fit on the disk; nothing was written.
        InUseError: Another conversion into the same folder is in progress.
    """
    start_time = time.monotonic()
    source = source.absolute()
    paths, mmfw_folders = mmf_paths.dataset, _list_mmfw_folders(source, mmf_paths)
    interrupted = not finish_installation(paths.root)
    notes = load_manifest_notes(paths.root)
    same_source = notes is not None and notes.source is not None and notes.source.is_same(source, exclude=mmfw_folders)
    load_manifest = load_intact_manifest if same_source or force else Manifest.load
    old_manifest = None if interrupted else load_manifest(paths.root)
    # An edited manifest shows which files belong to the user, but not which are intact.
    manifest = None if old_manifest is None or old_manifest.was_changed else old_manifest
    if manifest is not None and manifest.result and same_source and not force:
        repaired = repair_dataset(mmf_paths, source, ask=ask)
        seconds = time.monotonic() - start_time
        return replace(ConversionResult.from_manifest(manifest), already_done=not repaired, seconds=seconds)
    archive = open_archive(source, ask)
    layout = find_layout(source, archive.members, mmfw_folders)
    old_files = [file for split in SPLITS if (file := paths.annotation_file(split)).is_file()]
    if not (force or same_source or interrupted) and (old_files or (paths.images / "img").exists()):
        message = f"{paths.root}: a dataset already exists and is not known to come from this archive"
        raise DatasetError(message, hint="replace it with --force, or choose another --data-dir")
    archive.check_password()
    origin = ManifestSource.from_path(source, exclude=mmfw_folders)
    require_space(paths.root, _required_bytes(archive, layout))
    with open_staging(paths.root) as staging:
        digest = hashlib.sha256() if source.is_file() else None
        rows, images, files = unpack_dataset(archive, layout, staging, digest, allow_missing=allow_missing)
        origin = replace(origin, sha256=None if digest is None else digest.hexdigest())
        named_images = {row.img for split_rows in rows.values() for row in split_rows}
        result = ConversionResult(
            splits={s: SplitSummary.from_rows(rows[s], images, is_user_data=s in layout.tables) for s in rows},
            shared_ids=_count_shared_ids(rows, images),
            images=len(images),
            extra_images=len(set(images) - named_images),
            sha256=origin.sha256,
            is_published=None if origin.sha256 is None else origin.sha256 in _PUBLISHED_SHA256,
            already_done=False,
            seconds=time.monotonic() - start_time,
            judged_images=True,
        )
        new_manifest = make_manifest(paths.root, files, origin, result=to_stored(result))
        # Annotations of an earlier release are removed; files that the user added are kept.
        stale = [f for f in old_files if old_manifest is None or f"annotations/{f.name}" in old_manifest.files]
        obsolete = [paths.images / "img", *stale]
        if old_manifest is not None or not (same_source or interrupted):
            _keep_user_files(paths, staging.new_dir, old_manifest)
        install_staged(staging, new_manifest, obsolete_paths=[] if same_source and manifest is None else obsolete)
        return result


def _list_mmfw_folders(source: Path, mmf_paths: MmfPaths) -> tuple[Path, ...]:
    """Return the subfolders of a source folder in which mmfw and MMF write."""
    data_dir, output_folders = mmf_paths.data_dir, (mmf_paths.cache_dir, mmf_paths.save_dir)
    folders = (data_dir / "datasets", data_dir / "models", *output_folders)
    return tuple(folder for folder in folders if source in folder.parents)


def _keep_user_files(paths: DatasetPaths, new_root: Path, manifest: Manifest | None) -> None:
    """Copy files that the user added to the old dataset to the new one.

    A file with the same name as a new file, but different content, is renamed.

    Raises:
        DatasetError: Images would be lost, and there is no manifest that tells which belong to the user.
    """
    converted = manifest.files if manifest else {}
    files = [*(paths.images / "img").rglob("*"), *paths.annotations.glob("*.jsonl")]
    user_files = [file.relative_to(paths.root) for file in files if file.is_file()]
    user_files = [name for name in user_files if name.as_posix() not in converted]
    lost = [name for name in user_files if name.parts[0] == "images" and not (new_root / name).exists()]
    if manifest is None and lost:
        raise DatasetError(
            f"{paths.images / 'img'}: {len(lost)} files would be lost "
            f"({summarize_list([name.name for name in lost])}), and no manifest shows which are yours",
            hint="move the folder away and run the same command again",
        )
    for name in user_files if manifest else ():
        kept, number = name, 0
        while any(
            path.exists() and not cmp(paths.root / name, path, shallow=False)
            for path in (new_root / kept, paths.root / kept)
        ):
            number += 1
            kept = name.with_name(f"{name.name}.old-{number}")
        if kept != name or name in lost:
            (new_root / kept).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(paths.root / name, new_root / kept)
        if kept != name:
            _log.warning(
                "%s: your file was renamed to %s because the new dataset has a file of the same name",
                paths.root / name,
                kept.name,
            )


def _count_shared_ids(splits: Mapping[str, Sequence[AnnotationRow]], images: Collection[str]) -> dict[str, int]:
    ids = {split: {(row.id, row.img) for row in rows if row.img in images} for split, rows in splits.items()}
    counts = {f"{a} & {b}": len(ids[a] & ids[b]) for a, b in combinations(ids, 2)}
    return {pair: count for pair, count in counts.items() if count}


def _required_bytes(archive: Archive, layout: Layout) -> int:
    """Return the required disk space; a nested archive is stored and unpacked at the same time."""
    sizes = {member.name: member.size for member in archive.members}
    packed = 2 * sizes[layout.packed_images] if layout.packed_images else 0
    return packed + sum(sizes[name] for name in (*layout.annotations.values(), *layout.images.values()))


def repair_dataset(
    mmf_paths: MmfPaths, archive: Path | None = None, *, ask: PasswordCallback | None = None
) -> list[str]:
    """Rewrite damaged or missing files of the dataset, and complete a killed conversion.

    Files that mmfw did not write, such as the user's annotations, do not change.

    Args:
        mmf_paths: Folders of MMF.
        archive: Archive or folder of the dataset; by default, the recorded one.
        ask: Returns the password of an encrypted archive.

    Returns:
        The rewritten files, relative to the dataset's root.

    Raises:
        DatasetError: No dataset was converted here, or its archive is missing.
        DamagedManifestError: The damaged files are unknown; :func:`convert` rewrites all of them.
        ArchiveError, PasswordError, ResourceError: As for :func:`convert`; nothing was changed.
    """  # noqa: DOC501 - a function makes the error
    paths = mmf_paths.dataset
    finish_installation(paths.root)
    manifest = load_dataset_manifest(paths)
    if manifest is None:
        message = f"{paths.root}: without a manifest, damaged files cannot be found"
        command = format_command("mmfw", "convert", "--zip", "ARCHIVE", "--force", *data_dir_arguments(paths.data_dir))
        raise DatasetError(message, hint=f"run `{command}` to convert it again")
    names = [problem.path for problem in find_damage(manifest, title="Verifying the dataset")]
    if not names:
        return []
    if manifest.was_changed:
        raise damaged_manifest_error(paths.root, "it was changed")
    source = archive or find_source_archive(manifest)
    _log.info("%s: missing or damaged: %s", paths.root, summarize_list(names))
    opened_archive = open_archive(source, ask)
    layout = find_layout(source, opened_archive.members, _list_mmfw_folders(source, mmf_paths))
    opened_archive.check_password()
    with open_staging(paths.root) as staging:
        _, _, files = unpack_dataset(
            opened_archive, layout, staging, allow_missing=True, selected_files={*names}, converted_files=manifest.files
        )
        install_repaired(staging, manifest, files, names, source)
    _log.info("%s: rewrote the damaged files from %s", paths.root, source)
    return names


def find_source_archive(manifest: Manifest | None, hint: str | None = None) -> Path:
    """Return the path of the archive that the dataset was converted from.

    Raises:
        DatasetError: The archive was moved, or its path is unknown; ``hint`` is put before the usual hint.
    """
    source_hint = "pass the archive or its folder with --source"
    hint = f"{hint}, or {source_hint}" if hint else source_hint
    source = manifest.source if manifest else None
    if source is None:
        raise DatasetError("the archive of the dataset is unknown", hint=hint)
    if not Path(source.path).exists():
        raise DatasetError(f"the archive {source.name} was moved or deleted", hint=hint)
    return Path(source.path)


def load_dataset_manifest(paths: DatasetPaths) -> Manifest | None:
    """Load the manifest of the dataset.

    Returns:
        The manifest, or None if no dataset was converted.

    Raises:
        DamagedManifestError: The manifest is missing or damaged.
        IncompleteInstallError: A conversion was killed while it moved files into place.
    """  # noqa: DOC501 - a function makes the error
    require_complete_install(paths.root)
    manifest = Manifest.load(paths.root)
    if manifest is None and load_manifest_notes(paths.root):
        raise damaged_manifest_error(paths.root, "it is missing")
    return manifest
