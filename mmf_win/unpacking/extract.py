"""An archive unpacked to a folder, with a manifest of every file: all of it, or nothing that looks like it.

Chosen members are written to a staging folder; they and the archive itself are hashed meanwhile. Only then
everything moves to its place, the manifest last.
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

#: Name of a member → path of its file below the folder, with ``/``; None leaves the member out.
NameChooser: TypeAlias = Callable[[str], str | None]

_LARGE_MEMBER_BYTES = 1 << 20
_BACKDATE_NS = 3_000_000_000
_log = logging.getLogger(__name__)


def choose_all(member: str) -> str:
    """Choose each member, under its own name."""
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
    """Write the chosen members below ``here.new``; return what is there now, by paths with ``/`` below that.

    A tar need not be listed. The ``digest`` is fed with the archive itself. With ``enough``, this stops after
    so many members, and the digest is incomplete.

    Raises ArchiveError where the archive is damaged or hostile, or two members are for one file, and
    ResourceError where the members do not fit on the disk.
    """
    needed = sum(member.size for member in archive.members if choose(member.name) is not None)
    require_space(staging.new_dir, needed)
    taken: dict[str, str] = {}

    def choose_target(member: Member) -> Path | None:
        if (name := choose(member.name)) is None:
            return None
        if other := taken.get(collision_key(name)):
            message = f"members {other} and {member.name} are both for the file {name}"
            raise ArchiveError(message, prefix=f"{archive.path}:")
        taken[collision_key(name)] = member.name
        if member.size > _LARGE_MEMBER_BYTES:
            require_space(staging.new_dir, member.size)
        return staging.new_dir / name

    files: dict[str, ManifestEntry] = {}
    # A file that looks as if it changed about when it was hashed would be hashed again at the next check.
    mtime_ns = archive.path.stat().st_mtime_ns - _BACKDATE_NS
    work = archive.read_size or needed
    with (
        Progress(title, work) as bar,
        closing(archive.extract(choose_target, bar.advance, digest)) as written,
    ):
        for done in written:
            os.utime(done.target, ns=(mtime_ns, mtime_ns))
            files[done.target.relative_to(staging.new_dir).as_posix()] = ManifestEntry(done.sha256, done.size)
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
    """Unpack an archive to a folder and write the manifest of what came out of it.

    When the folder already holds what came out of this archive, it is verified, and only files that are wrong
    are unpacked again, reading no further than the last of them. Such a member is believed when it has the
    hash that the manifest says, whatever else is wrong with the archive.

    Other files in the folder stay, except those in the way of a new one. While another process is at work
    there, this one says so and waits.

    Args:
        expected_sha256: of the archive, as its publisher says, in hex.
        check: is given the folder of what will be in place, and may refuse it by an error of its own.
        replaces: files about what was there before; removed before anything moves.

    Raises:
        ArchiveError: the archive is damaged, hostile, none at all, or not the expected one.
        PasswordError: the password is missing or wrong; nothing was written.
        ResourceError: there is not enough room; what was written is gone again.
        OSError: a file cannot be written; what was written is gone again.
    """
    finish_installation(folder)
    manifest, wrong = _load_manifest_of(archive, folder, expected_sha256)
    if manifest and not wrong:
        _log.info("%s: this archive is unpacked here already", folder)
        return manifest

    def choose_damaged(member: str) -> str | None:
        name = choose(member)
        return name if name in wrong else None

    opened = open_archive(archive, ask, listed=False)
    opened.check_password()
    source = ManifestSource.from_path(archive)
    with open_staging(folder, wait=True) as here:
        if manifest is None:  # another process may have been at work here until now
            manifest, wrong = _load_manifest_of(archive, folder, expected_sha256)
        if manifest:
            if wrong:
                files = extract_to_staging(opened, choose_damaged, here, title, max_files=len(wrong))
                install_repaired(here, manifest, files, wrong, archive)
            return manifest
        if not opened.members:  # a tar, of which nothing else is known yet
            require_space(folder, archive.stat().st_size)
        digest = hashlib.sha256() if archive.is_file() else None
        files = extract_to_staging(opened, choose, here, title, digest)
        source = replace(source, sha256=None if digest is None else digest.hexdigest())
        manifest = make_manifest(folder, files, source, expected_sha256)
        validate(here.new_dir)
        install_staged(here, manifest, obsolete_paths=obsolete_paths)
        return manifest


def install_staged(staging: Staging, manifest: Manifest, *, obsolete_paths: Collection[Path] = ()) -> None:
    """Move staged files to their folder, together with their manifest: all or nothing, the manifest last.

    What it ``replaces``, files and folders, is removed first.
    """
    # Else a power cut might leave the manifest and lose the files. Their sizes would not always tell: NTFS
    # may keep a size and lose the content. The moves need no more than that: file systems keep their order.
    fsync_files([staging.new_dir / name for name in manifest.files])
    replace(manifest, folder=staging.folder).save()
    stale = [*manifest_files(manifest.folder), *obsolete_paths]
    moves = [*((None, path) for path in stale), *_plan_moves(staging.new_dir, manifest.folder, stale)]
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
    """The manifest of files that came out of an archive; it is not written.

    Raises ArchiveError where the archive is not the expected one.
    """
    if expected_sha256 not in (None, source.sha256):
        differs = f"its SHA-256 is {source.sha256}, not {expected_sha256}"
        message = f"{source.path}: not the archive that was published: {differs}"
        raise ArchiveError(message, hint="the file may be incomplete or damaged; get it again")
    basis: HashOrigin = "published" if expected_sha256 else "archive" if source.sha256 else "recorded"
    return Manifest(folder, dict(sorted(files.items())), basis, source, result or {})


def install_repaired(
    staging: Staging,
    manifest: Manifest,
    files: Mapping[str, ManifestEntry],
    names: Collection[str],
    archive: Path,
) -> None:
    """Move the staged files ``names`` to their places, if they are what the manifest says.

    Raises ArchiveError where a file is not there, or has other content; nothing was changed then.
    """
    for name in names:
        if name not in files or files[name].sha256 != manifest.files[name].sha256:
            what = "other content in" if name in files else "no"
            message = f"{archive}: there is {what} {name}"
            raise ArchiveError(message, hint="this is another archive, or a damaged one")
    fsync_files([staging.new_dir / name for name in names])
    staging.install([(staging.new_dir / name, manifest.folder / name) for name in names])
    # The sizes that were noted may be what was damaged.
    sizes = {name: files[name] for name in names}
    mark_intact(replace(manifest, files={**manifest.files, **sizes}), names)


def _load_manifest_of(
    archive: Path, folder: Path, expected_sha256: str | None
) -> tuple[Manifest | None, Collection[str]]:
    """The folder's manifest, if what it lists came out of this archive, and which of its files are wrong."""
    manifest = load_intact_manifest(folder)  # whatever a damaged one lists is unpacked again
    source = manifest.source if manifest and not manifest.was_changed else None
    if manifest and source and expected_sha256 in (None, source.sha256) and source.is_same(archive):
        return manifest, dict.fromkeys(difference.path for difference in find_damage(manifest))
    return None, ()


def _plan_moves(
    new_dir: Path, target_dir: Path, removed_paths: Collection[Path]
) -> Iterator[tuple[Path | None, Path]]:
    """What to move to bring all that is in ``new`` into ``target``, with the fewest moves."""
    for entry in sorted(new_dir.iterdir()):
        to = target_dir / entry.name
        if entry.is_dir() and to.is_dir() and to not in removed_paths:
            yield from _plan_moves(entry, to, removed_paths)
        else:
            yield entry, to
