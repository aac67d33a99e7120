"""Extraction of an archive to a folder with a manifest of its files, all or nothing.

Chosen members are written to a staging folder; they and the archive itself are hashed at the same time.
Everything is moved into place only then, the manifest last.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from mmf_win.archives import Archive, Digest, Member, PasswordCallback, open_archive
from mmf_win.archives.base import GET_AGAIN_HINT
from mmf_win.archives.names import collision_key
from mmf_win.console import Progress
from mmf_win.errors import ArchiveError
from mmf_win.integrity.manifest import (
    HashOrigin,
    Manifest,
    ManifestEntry,
    ManifestSource,
    load_intact_manifest,
    manifest_files,
)
from mmf_win.integrity.verify import find_damage, mark_intact
from mmf_win.unpacking.staging import Staging, finish_installation, fsync_files, open_staging, require_space

#: Name of a member → path of its file below the folder, with ``/``, or None to skip the member.
NameChooser: TypeAlias = Callable[[str], str | None]

_LARGE_MEMBER_BYTES = 1 << 20
_BACKDATE_NS = 3_000_000_000
_log = logging.getLogger(__name__)


def choose_all(member: str) -> str:
    """Choose every member under its own name."""
    return member


def extract_to_staging(
    archive: Archive,
    choose: NameChooser,
    staging: Staging,
    title: str,
    digest: Digest | None = None,
    *,
    max_files: int | None = None,
) -> dict[str, ManifestEntry]:
    """Write the chosen members to the ``new`` folder of the staging folder.

    Args:
        archive: A tar may be opened without listing its members.
        choose: Returns the target of each member.
        staging: Where the members are written.
        title: Title of the progress bar.
        digest: Receives the bytes of the archive itself.
        max_files: Stop after this many members; the digest is then incomplete.

    Returns:
        The written files, by path relative to the ``new`` folder, with ``/``.

    Raises:
        ArchiveError: The archive is damaged or unsafe, or two members have the same target.
        ResourceError: The members do not fit on the disk.
    """
    needed = sum(member.size for member in archive.members if choose(member.name) is not None)
    require_space(staging.new_dir, needed)
    member_by_key: dict[str, str] = {}

    def choose_target(member: Member) -> Path | None:
        if (name := choose(member.name)) is None:
            return None
        if other := member_by_key.get(collision_key(name)):
            message = f"members {other} and {member.name} have the same target file {name}"
            raise ArchiveError(message, prefix=f"{archive.path}:")
        member_by_key[collision_key(name)] = member.name
        if member.size > _LARGE_MEMBER_BYTES:
            require_space(staging.new_dir, member.size)
        return staging.new_dir / name

    files: dict[str, ManifestEntry] = {}
    # A file with an mtime close to the time when it was hashed would be hashed again at the next check.
    mtime_ns = archive.path.stat().st_mtime_ns - _BACKDATE_NS
    total_bytes = archive.read_size or needed
    with Progress(title, total_bytes) as bar, closing(archive.extract(choose_target, bar.advance, digest)) as extracted:
        for file in extracted:
            os.utime(file.target, ns=(mtime_ns, mtime_ns))
            files[file.target.relative_to(staging.new_dir).as_posix()] = ManifestEntry(file.sha256, file.size)
            if len(files) == max_files:
                break
    return files


def extract_verified(
    archive: Path,
    folder: Path,
    *,
    ask: PasswordCallback | None = None,
    choose: NameChooser = choose_all,
    expected_sha256: str | None = None,
    validate: Callable[[Path], None] = lambda _: None,
    obsolete_paths: Collection[Path] = (),
    title: str = "Extracting",
) -> Manifest:
    """Extract an archive to a folder and write the manifest of the files.

    If the folder already contains the files of this archive, they are verified, and only the damaged files are
    extracted again. In that case, the archive is read only up to the last damaged file, and its own hash is not
    checked. Each extracted file is compared with the manifest instead, so damage elsewhere in the archive does
    not matter.

    Other files in the folder are kept unless a new file replaces them. If another process is using the
    folder, this one logs a message and waits.

    Args:
        archive: Archive file or folder.
        folder: Target folder.
        ask: Returns the password.
        choose: Returns the path of each member below ``folder``.
        expected_sha256: SHA-256 of the archive according to its publisher, in hex.
        validate: Called with the folder of the new files before they are installed; may raise an error.
        obsolete_paths: Files that describe earlier contents; removed before anything is moved.
        title: Title of the progress bar.

    Returns:
        The manifest of the folder.

    Raises:
        ArchiveError: The archive is damaged, unsafe, not an archive, or not the expected one.
        PasswordError: The password is missing or wrong; nothing was written.
        ResourceError: The disk space is not sufficient; written files were removed again.
        OSError: A file cannot be written; written files were removed again.
    """
    finish_installation(folder)
    manifest, damaged_names = _load_manifest(archive, folder, expected_sha256)
    if manifest and not damaged_names:
        _log.info("%s: already extracted from this archive", folder)
        return manifest

    def choose_damaged(member: str) -> str | None:
        name = choose(member)
        return name if name in damaged_names else None

    opened_archive = open_archive(archive, ask, list_members=False)
    opened_archive.check_password()
    source = ManifestSource.from_path(archive)
    with open_staging(folder, wait=True) as staging:
        if manifest is None:  # another process may have installed the files in the meantime
            manifest, damaged_names = _load_manifest(archive, folder, expected_sha256)
        if manifest:
            if damaged_names:
                files = extract_to_staging(opened_archive, choose_damaged, staging, title, max_files=len(damaged_names))
                install_repaired(staging, manifest, files, damaged_names, archive)
            return manifest
        if not opened_archive.members:  # an unlisted tar; the size of its members is unknown
            require_space(folder, archive.stat().st_size)
        digest = hashlib.sha256() if archive.is_file() else None
        files = extract_to_staging(opened_archive, choose, staging, title, digest)
        source = replace(source, sha256=None if digest is None else digest.hexdigest())
        manifest = make_manifest(folder, files, source, expected_sha256)
        validate(staging.new_dir)
        install_staged(staging, manifest, obsolete_paths=obsolete_paths)
        return manifest


def install_staged(staging: Staging, manifest: Manifest, *, obsolete_paths: Collection[Path] = ()) -> None:
    """Move staged files and their manifest to the manifest's folder, all or nothing, the manifest last.

    Files and folders in ``obsolete_paths`` are removed first.
    """
    # Otherwise a power cut might keep the manifest and lose the files. Their sizes do not always show that:
    # NTFS may keep a size and lose the content. The moves need no flush; file systems keep their order.
    fsync_files([staging.new_dir / name for name in manifest.files])
    replace(manifest, folder=staging.folder).save()
    stale_paths = [*manifest_files(manifest.folder), *obsolete_paths]
    moves = [*((None, path) for path in stale_paths), *_plan_moves(staging.new_dir, manifest.folder, stale_paths)]
    moves += [(path, manifest.folder / path.name) for path in reversed(manifest_files(staging.folder))]
    staging.install(moves)
    mark_intact(manifest, manifest.files)


def make_manifest(
    folder: Path,
    files: Mapping[str, ManifestEntry],
    source: ManifestSource,
    expected_sha256: str | None = None,
    result: Mapping[str, Any] | None = None,
) -> Manifest:
    """Return the manifest of files extracted from an archive, without saving it.

    Args:
        folder: Folder of the manifest.
        files: Files by path relative to the folder.
        source: Archive that the files come from.
        expected_sha256: SHA-256 of the archive according to its publisher, in hex.
        result: See :class:`Manifest`.

    Returns:
        The manifest, with sorted files.

    Raises:
        ArchiveError: The archive is not the expected one.
    """
    if expected_sha256 not in (None, source.sha256):
        hashes = f"SHA-256 {source.sha256}, expected {expected_sha256}"
        message = f"{source.path}: not the published archive ({hashes})"
        raise ArchiveError(message, hint=GET_AGAIN_HINT)
    hash_origin: HashOrigin = "published" if expected_sha256 else "archive" if source.sha256 else "recorded"
    return Manifest(folder, dict(sorted(files.items())), hash_origin, source, result or {})


def install_repaired(
    staging: Staging, manifest: Manifest, files: Mapping[str, ManifestEntry], names: Collection[str], archive: Path
) -> None:
    """Move the staged files ``names`` to their places if they match the manifest.

    Args:
        staging: Folder with the staged files.
        manifest: Manifest of the target folder.
        files: Hash and size of the staged files.
        names: Paths of the files to repair, relative to the folder.
        archive: Archive that the files come from, for error messages.

    Raises:
        ArchiveError: A file is missing or differs from the manifest; nothing was changed.
    """
    for name in names:
        if name not in files or files[name].sha256 != manifest.files[name].sha256:
            problem = "different content for" if name in files else "no"
            message = f"{archive}: contains {problem} {name}"
            raise ArchiveError(message, hint="use the original archive; this one is different or damaged")
    fsync_files([staging.new_dir / name for name in names])
    staging.install([(staging.new_dir / name, manifest.folder / name) for name in names])
    # The recorded sizes may have been damaged, so take those of the new files.
    sizes = {name: files[name] for name in names}
    mark_intact(replace(manifest, files={**manifest.files, **sizes}), names)


def _load_manifest(archive: Path, folder: Path, expected_sha256: str | None) -> tuple[Manifest | None, Collection[str]]:
    """Return the folder's manifest if its files come from this archive, and the names of damaged files."""
    manifest = load_intact_manifest(folder)  # with a damaged manifest, all files are extracted again
    source = manifest.source if manifest and not manifest.was_changed else None
    if manifest and source and expected_sha256 in (None, source.sha256) and source.is_same(archive):
        return manifest, dict.fromkeys(difference.path for difference in find_damage(manifest))
    return None, ()


def _plan_moves(new_dir: Path, target_dir: Path, removed_paths: Collection[Path]) -> Iterator[tuple[Path | None, Path]]:
    """Yield the fewest moves that bring all files of ``new_dir`` to ``target_dir``."""
    for entry in sorted(new_dir.iterdir()):
        target = target_dir / entry.name
        if entry.is_dir() and target.is_dir() and target not in removed_paths:
            yield from _plan_moves(entry, target, removed_paths)
        else:
            yield entry, target
