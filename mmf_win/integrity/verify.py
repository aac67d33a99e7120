"""Verification of files against their manifest, and the results that commands show."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from mmf_win.console import Progress
from mmf_win.errors import MmfwError
from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.manifest import MANIFEST_NAME, FileStamp, Manifest, ManifestEntry, load_manifest_notes
from mmf_win.locking import file_lock
from mmf_win.machine import default_thread_count
from mmf_win.threads import ThreadGroup, partition_by_size

#: Name of a folder's lock file, which a process that changes the folder must lock.
LOCK_NAME = ".mmfw-lock"

#: State of files that belong together.
#:
#: ``intact``: verified. ``recorded``: unchanged since they were first read; there are no other hashes to
#: verify them against. ``not verified``: present, but not read yet. ``missing``: never installed.
#: ``damaged``: a file is missing, changed or unreadable.
VerificationState: TypeAlias = Literal["intact", "recorded", "not verified", "missing", "damaged"]

#: Data that can be verified and repaired separately.
Part: TypeAlias = Literal["dataset", "features", "runs", "mmf"]


#: Key of a file, its SHA-256 in hex or the error, and its state.
HashResult: TypeAlias = tuple[str, str | OSError, FileStamp | None]


@dataclass(frozen=True)
class FileProblem:
    """A missing or damaged file; its path is relative to the folder, with ``/`` on all systems."""

    kind: Literal["missing", "changed", "unreadable"]
    path: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.path}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True)
class VerificationResult:
    """Result of verifying or repairing files that belong together.

    Attributes:
        part: Part that they belong to; repairing that part repairs them.
        title: Name of the files, for display.
        folder: Folder of the files.
        state: State of the files.
        verified_against: Description of the hashes that they were compared with, for display.
        problems: Problems, one line per file.
        size: Total size of the existing files in bytes, or None if unknown.
        verified_at: When they were last found intact, in seconds since the epoch; None if they changed since.
        error: Why they cannot be verified or repaired.
        repaired: Problems that were repaired, as in ``problems``.
    """

    part: Part
    title: str
    folder: Path
    state: VerificationState
    verified_against: str = ""
    problems: tuple[str, ...] = ()
    size: int | None = None
    verified_at: float | None = None
    error: MmfwError | None = None
    repaired: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """True if the files exist and no damage is known."""
        return self.state in ("intact", "recorded")


def find_damage(
    manifest: Manifest, *, full: bool = False, only_files: Collection[str] | None = None, title: str = "Verifying"
) -> list[FileProblem]:
    """Compare files with their manifest.

    Files that are not known to be unchanged are read in parallel with a progress bar. Those that are intact
    are recorded in the manifest and its notes. If the folder is read-only or in use by another process, the
    notes are not written; the next check then reads the files again.

    Args:
        manifest: Manifest of the folder; its stamps are updated.
        full: Read all files, even those that are known to be unchanged.
        only_files: Compare only these files.
        title: Title of the progress bar.

    Returns:
        The problems, in the order of the manifest.
    """
    names = list(manifest.files) if only_files is None else sorted(only_files)
    stats = _stat_files(manifest.folder, names)
    problems: dict[str, FileProblem] = {}
    to_read: dict[str, int] = {}
    for name in names:
        entry, file_stat = manifest.files[name], stats.get(name)
        stamp = None if full else manifest.stamps.get(name)
        if file_stat is None:
            problems[name] = FileProblem("missing", name)
        elif entry.size not in (None, file_stat.st_size):
            problems[name] = FileProblem("changed", name, f"{file_stat.st_size} instead of {entry.size} bytes")
        elif stamp is None or not stamp.is_current(file_stat):
            to_read[name] = file_stat.st_size
    if to_read or problems:
        old_stamps = dict(manifest.stamps)
        for name in (*problems, *to_read):
            manifest.stamps.pop(name, None)
        for name, sha256, stamp in hash_files({n: manifest.folder / n for n in to_read}, to_read, title):
            if isinstance(sha256, OSError):
                problems[name] = FileProblem("unreadable", name, sha256.strerror or str(sha256))
            elif sha256 != manifest.files[name].sha256:
                problems[name] = FileProblem("changed", name, "different content")
            elif stamp is not None:
                manifest.stamps[name] = stamp
        if manifest.stamps != old_stamps and (manifest.folder / MANIFEST_NAME).is_file():
            with suppress(OSError), file_lock(manifest.folder / LOCK_NAME):
                manifest.save_stamps()
    return [problems[name] for name in names if name in problems]


def oldest_check_time(manifest: Manifest) -> float | None:
    """Return the time of the oldest check in seconds since the epoch: all files were intact then.

    Returns:
        The time, or None if a file is missing or may have changed since its check.
    """
    stats, stamps = _stat_files(manifest.folder, manifest.files), manifest.stamps
    current_stamps = [stamps[name] for name in stats.keys() & stamps if stamps[name].is_current(stats[name])]
    all_current = len(current_stamps) == len(manifest.files)
    return min(stamp.checked_ns for stamp in current_stamps) / 1e9 if current_stamps and all_current else None


def record_hashes(folder: Path, names: Iterable[str], *, title: str = "Recording") -> Manifest:
    """Hash files as they are and write their manifest.

    A recorded source of the files is kept, since it may still repair them.

    Args:
        folder: Folder of the manifest.
        names: Paths relative to the folder.
        title: Title of the progress bar.

    Returns:
        The saved manifest.

    Raises:
        OSError: A file cannot be read, or the manifest cannot be written.
    """
    paths = {name: folder / name for name in sorted(names)}
    files: dict[str, ManifestEntry] = {}
    stamps: dict[str, FileStamp] = {}
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    for name, sha256, stamp in hash_files(paths, sizes, title):
        if isinstance(sha256, OSError):
            raise sha256
        files[name] = ManifestEntry(sha256, sizes[name])
        if stamp is not None:
            stamps[name] = stamp
    old_manifest = load_manifest_notes(folder)
    source = old_manifest.source if old_manifest else None
    manifest = Manifest(folder, {name: files[name] for name in paths}, source=source, stamps=stamps)
    manifest.save()
    return manifest


def mark_intact(manifest: Manifest, names: Iterable[str]) -> None:
    """Record that files were rewritten with the correct content; the caller must hold the lock."""
    for name, file_stat in _stat_files(manifest.folder, names).items():
        manifest.stamps[name] = FileStamp.from_stat(file_stat)
    with suppress(OSError):
        manifest.save_stamps()


def hash_files(files: Mapping[str, Path], sizes: Mapping[str, int], title: str) -> Iterator[HashResult]:
    """Compute the SHA-256 of files in several threads, with a progress bar.

    All threads have ended when this ends, even after Ctrl+C.

    Args:
        files: Files by any key.
        sizes: Size of each file in bytes.
        title: Title of the progress bar.

    Yields:
        Key; SHA-256 in hex, or the error if the file cannot be read; state of the file, or None if it was
        changed while it was read. The order is undefined.
    """
    group: ThreadGroup[HashResult] = ThreadGroup()

    def hash_all(keys: Iterable[str]) -> None:
        for key in keys:
            try:
                before = files[key].stat()
                sha256 = file_digest(files[key], group.advance).hex()
                stamp = FileStamp.from_stat(files[key].stat())
            except OSError as error:
                group.report((key, error, None))
            else:
                group.report((key, sha256, stamp if stamp.matches(before) else None))

    shares = partition_by_size(files, default_thread_count(), sizes.__getitem__)
    with Progress(title, sum(sizes.values())) as bar:
        yield from group.run([partial(hash_all, share) for share in shares], bar.advance)


def _stat_files(root: Path, names: Iterable[str]) -> dict[str, os.stat_result]:
    """Return the state of each existing regular file."""
    stats = {}
    for name in names:
        with suppress(OSError):
            file_stat = (root / name).stat()
            if stat.S_ISREG(file_stat.st_mode):
                stats[name] = file_stat
    return stats
