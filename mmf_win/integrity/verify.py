"""Files compared with their manifest, and what that shows, in the words of every command."""

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

#: The file in a folder that whoever changes the folder holds locked.
LOCK_NAME = ".mmfw-lock"

#: State of files that belong together.
#:
#: ``intact``: verified. ``recorded``: unchanged since they were first read, and there is nothing else to
#: verify them against. ``not verified``: they are there, and have to be read. ``missing``: they are not
#: there, and never were. ``damaged``: a file is missing, changed or unreadable.
VerificationState: TypeAlias = Literal["intact", "recorded", "not verified", "missing", "damaged"]

#: What can be verified and repaired by itself.
Part: TypeAlias = Literal["dataset", "features", "runs", "mmf"]


HashResult: TypeAlias = tuple[str, str | OSError, FileStamp | None]


@dataclass(frozen=True)
class FileProblem:
    """A file that is not what it should be; its path is relative to the folder, and has ``/`` everywhere."""

    kind: Literal["missing", "changed", "unreadable"]
    path: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.path}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True)
class VerificationResult:
    """Knowledge about files that belong together.

    Attributes:
        part: what they are part of; repairing that part repairs them.
        what: they are, for people.
        against: what they were verified against, for people.
        problems: what is wrong, a line for each file.
        size: bytes of the files that are there; None where nobody has counted.
        verified: when they were last found intact, in seconds since the epoch; None if they changed since.
        error: why they cannot be verified or repaired.
        repaired: what was wrong and has been repaired, as in ``problems``.
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
        """Tell whether the files are there, and as they should be as far as anybody knows."""
        return self.state in ("intact", "recorded")


def find_damage(
    manifest: Manifest,
    *,
    full: bool = False,
    only_files: Collection[str] | None = None,
    title: str = "Verifying",
) -> list[FileProblem]:
    """Compare files, ``only`` some or all, with their manifest; return what is wrong, in its order.

    Unless ``full``, a file that was not touched since it was last found intact is not read again. All others
    are, side by side and with a progress bar, and those that are intact are remembered in the manifest and
    beside it – unless the folder is read-only or another process is at work there; then that is all that is
    lost.
    """
    names = list(manifest.files) if only_files is None else sorted(only_files)
    stats = _stat_files(manifest.folder, names)
    wrong: dict[str, FileProblem] = {}
    to_read: dict[str, int] = {}
    for name in names:
        entry, found = manifest.files[name], stats.get(name)
        check = None if full else manifest.stamps.get(name)
        if found is None:
            wrong[name] = FileProblem("missing", name)
        elif entry.size not in (None, found.st_size):
            wrong[name] = FileProblem("changed", name, f"{found.st_size} instead of {entry.size} bytes")
        elif check is None or not check.is_current(found):
            to_read[name] = found.st_size
    if to_read or wrong:
        before = dict(manifest.stamps)
        for name in (*wrong, *to_read):
            manifest.stamps.pop(name, None)
        for name, sha256, check in hash_files({n: manifest.folder / n for n in to_read}, to_read, title):
            if isinstance(sha256, OSError):
                wrong[name] = FileProblem("unreadable", name, sha256.strerror or str(sha256))
            elif sha256 != manifest.files[name].sha256:
                wrong[name] = FileProblem("changed", name, "other content")
            elif check is not None:
                manifest.stamps[name] = check
        if manifest.stamps != before and (manifest.folder / MANIFEST_NAME).is_file():
            with suppress(OSError), file_lock(manifest.folder / LOCK_NAME):
                manifest.save_stamps()
    return [wrong[name] for name in names if name in wrong]


def oldest_check_time(manifest: Manifest) -> float | None:
    """When all files were last known to be intact: the oldest check, in seconds since the epoch.

    None when a file is gone, or would have to be read to know.
    """
    stats, checks = _stat_files(manifest.folder, manifest.files), manifest.stamps
    held = [checks[name] for name in stats.keys() & checks if checks[name].is_current(stats[name])]
    all_hold = len(held) == len(manifest.files)
    return min(check.checked_ns for check in held) / 1e9 if held and all_hold else None


def record_hashes(folder: Path, names: Iterable[str], *, title: str = "Recording") -> Manifest:
    """Hash the files ``names`` below ``folder`` as they are, and write their manifest.

    If it is noted what they were made of, that is kept: it may still repair them. Raises OSError where a file
    cannot be read, or the manifest cannot be written.
    """
    paths = {name: folder / name for name in sorted(names)}
    files: dict[str, ManifestEntry] = {}
    checks: dict[str, FileStamp] = {}
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    for name, sha256, check in hash_files(paths, sizes, title):
        if isinstance(sha256, OSError):
            raise sha256
        files[name] = ManifestEntry(sha256, sizes[name])
        if check is not None:
            checks[name] = check
    known = load_manifest_notes(folder)
    source = known.source if known else None
    manifest = Manifest(folder, {name: files[name] for name in paths}, source=source, stamps=checks)
    manifest.save()
    return manifest


def mark_intact(manifest: Manifest, names: Iterable[str]) -> None:
    """Record that the files ``names`` were rewritten with the right content; for the lock's holder."""
    for name, found in _stat_files(manifest.folder, names).items():
        manifest.stamps[name] = FileStamp.from_stat(found)
    with suppress(OSError):
        manifest.save_stamps()


def hash_files(files: Mapping[str, Path], sizes: Mapping[str, int], title: str) -> Iterator[HashResult]:
    """Hash files by SHA-256, several at a time and in any order, with a progress bar.

    Whenever this ends, by Ctrl+C too, all threads have ended before.

    Yields:
        the key; the hash in hex, or why the file could not be read; the state in which the file was both
        before and after, None when it was changed meanwhile.
    """
    group: ThreadGroup[HashResult] = ThreadGroup()

    def hash_all(keys: Iterable[str]) -> None:
        for key in keys:
            try:
                before = files[key].stat()
                sha256 = file_digest(files[key], group.advance).hex()
                check = FileStamp.from_stat(files[key].stat())
            except OSError as error:
                group.report((key, error, None))
            else:
                group.report((key, sha256, check if check.matches(before) else None))

    shares = partition_by_size(files, default_thread_count(), sizes.__getitem__)
    with Progress(title, sum(sizes.values())) as bar:
        yield from group.run([partial(hash_all, share) for share in shares], bar.advance)


def _stat_files(root: Path, names: Iterable[str]) -> dict[str, os.stat_result]:
    """The state of each file that is there; what is no file is left out."""
    stats = {}
    for name in names:
        with suppress(OSError):
            state = (root / name).stat()
            if stat.S_ISREG(state.st_mode):
                stats[name] = state
    return stats
