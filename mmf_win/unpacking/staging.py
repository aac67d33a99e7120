"""How new files take their place: staged beside it, then moved in all together, or not at all.

::

    <dataset root>/
    ├── .mmfw-lock              held while one process works here; the system frees it when that one dies
    └── .mmfw-staging/          what is not finished; removed at the end, or at the next start
        ├── new/                files being written
        ├── SHA256SUMS          their manifest, once all of them are complete
        ├── old-xxxx/           what they replace, until all of them are in place
        ├── elsewhere           .mmfw-staging/old-xxxx/ in the other folders that have targets
        └── installing          the moves, there from the first of them until the last

Where ``installing`` is, nobody reads the files in the root. If its process has died, whoever works there next
makes the moves that are left.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeAlias

from mmf_win.console import Progress, format_size
from mmf_win.errors import IncompleteInstallError, InUseError, ResourceError, UsageError
from mmf_win.files import (
    add_path_to_errors,
    free_space,
    fsync_file,
    read_json,
    remove,
    remove_tree,
    rename,
    to_mmfw_error,
    write_json,
)
from mmf_win.integrity.manifest import repair_command
from mmf_win.integrity.verify import LOCK_NAME
from mmf_win.locking import file_lock, is_locked
from mmf_win.paths import MmfPaths

_log = logging.getLogger(__name__)

_MOVES_FILE, _OTHER_FOLDERS_FILE = "installing", "elsewhere"
_COPY_SUFFIX = ".copy"
_RESERVE_BYTES = 64 << 20
_MAX_PARALLEL_FLUSHES = 8


#: A new file or folder, its target, and where what was there is kept.
_PreparedMove: TypeAlias = "tuple[Path | None, Path, Path]"


class Staging:
    """A staging folder, of which there is one at a time; files are written below ``new``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folder = staging_folder(root)
        self._moves_file = self.folder / _MOVES_FILE
        self.new_dir = self.folder / "new"

    def install(self, moves: Sequence[tuple[Path | None, Path]]) -> None:
        """Move each new file or folder to its target, in this order; None only takes the target away.

        What was at the targets is kept until all moves have succeeded, and put back when one fails. After an
        interrupt, which may come between a move and the note of it, the next start makes the moves that are
        left, as after a kill.
        """
        # Not a folder of an earlier installation, which may still hold a file that somebody has open.
        kept = Path(mkdtemp(prefix="old-", dir=self.folder))
        moves = [(new, target) for new, target in moves if new is not None or os.path.lexists(target)]
        prepared = self._prepare_moves(moves, kept)
        names = [[path and path.relative_to(self._root).as_posix() for path in move] for move in prepared]
        made: list[tuple[Path, Path]] = []
        write_json(self._moves_file, {"moves": names})
        try:
            self._apply_moves(prepared, made)
        except Exception:
            for old, new in reversed(made):
                if new.name.endswith(_COPY_SUFFIX) and os.path.lexists(old):
                    remove_tree(old)  # of which a part may be removed
                rename(new, old)  # should one fail, `installing` stays, and the next one makes all moves
            remove(self._moves_file)
            raise
        remove(self._moves_file)

    def finish_moves(self) -> None:
        """Make the moves that are left where a process died between them."""
        with suppress(FileNotFoundError, KeyError, ValueError, TypeError):  # it is damaged, or not there
            noted = read_json(self._moves_file)
            kept = f"{self.folder.name}/{noted.get('old')}"  # where earlier versions kept all old files
            named = [(*move, f"{kept}/{number}")[:3] for number, move in enumerate(noted["moves"])]
            root = self._root
            self._apply_moves(
                [(new and root / new, root / target, root / old) for new, target, old in named], []
            )
            remove(self._moves_file)

    def _prepare_moves(
        self, moves: Sequence[tuple[Path | None, Path]], old_files_dir: Path
    ) -> list[_PreparedMove]:
        """Return moves that are renames within a disk, after copying what no rename can move.

        That is a new file whose target is on another disk, behind a link, and an old folder in a lower layer
        of an overlay file system. Old files are kept in a staging folder next to them.
        """
        parents = {target.parent for _, target in moves} - {self._root}
        kept_there = [
            staging_folder(parent.relative_to(self._root)) / old_files_dir.name for parent in parents
        ]
        write_json(self.folder / _OTHER_FOLDERS_FILE, [folder.as_posix() for folder in kept_there])
        prepared: list[_PreparedMove] = []
        copied = set[Path]()  # which a later move finds gone
        for number, (new, target) in enumerate(moves):
            old = staging_folder(target.parent) / old_files_dir.name / str(number)
            old.parent.mkdir(parents=True, exist_ok=True)
            is_elsewhere = old.parent.stat().st_dev != old_files_dir.stat().st_dev
            if new is not None and (is_elsewhere or _crosses_disks(old.parent, self.folder)):
                new = _copy_and_fsync(new, old.with_name(f"{number}.new"))
            if target not in copied and _crosses_disks(target, old.parents[1]):
                _copy_and_fsync(target, old.with_name(f"{number}{_COPY_SUFFIX}"))
                copied.add(target)
            prepared.append((new, target, old))
        return prepared

    def _apply_moves(self, moves: Sequence[_PreparedMove], applied_renames: list[tuple[Path, Path]]) -> None:
        """Make the moves that are not made yet; keep old files; add each rename to ``made``."""
        for new, target, old in moves:
            if os.path.lexists(old) if new is None else not os.path.lexists(new):
                continue  # it was made before
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = old.with_name(f"{old.name}{_COPY_SUFFIX}")
            if os.path.lexists(copy):
                applied_renames.append((target, copy))
                if os.path.lexists(target):
                    remove_tree(target)
                rename(copy, old)
                applied_renames[-1] = (target, old)
            elif os.path.lexists(target):
                rename(target, old)
                applied_renames.append((target, old))
            if new is not None:
                rename(new, target)
                applied_renames.append((new, target))


@contextmanager
def open_staging(root: Path, *, wait: bool = False) -> Iterator[Staging]:
    """A staging folder in ``root``, which is made. It is empty at first, and gone afterwards.

    What a process that died has left in it is removed, or moved to its place where that had begun.

    Raises InUseError where another process is at work in ``root``, unless told to ``wait`` until it has
    finished; it may then have done the same step already.
    """
    root.mkdir(parents=True, exist_ok=True)
    refused = _in_use_error(root)
    waiting = partial(_log.info, "%s; waiting for it to finish", refused)
    with file_lock(root / LOCK_NAME, inf if wait else 0, waiting, in_use_error=refused):
        here = Staging(root)
        here.finish_moves()
        _remove_staging(here.folder)
        here.new_dir.mkdir(parents=True, exist_ok=True)
        try:
            yield here
        finally:
            if not is_install_incomplete(root):
                _remove_staging(here.folder)


def staging_folder(root: Path) -> Path:
    """Where the unfinished files of ``root`` are."""
    return root / ".mmfw-staging"


def is_install_incomplete(root: Path) -> bool:
    """Whether only some of the files that belong together in ``root`` may have been moved there."""
    return (staging_folder(root) / _MOVES_FILE).exists()


def require_complete_install(root: Path) -> None:
    """Refuse to read files in ``root`` of which some may belong to an older set, or are not there yet.

    Raises InUseError while a process is moving them there, UnfinishedInstallation where it has died.
    """
    if is_install_incomplete(root):
        if is_locked(root / LOCK_NAME):
            raise InUseError(f"{root}: another mmfw is moving files to their places")
        if is_install_incomplete(root):  # for it may have ended between the two questions
            message = f"{root}: mmfw was interrupted while it moved new files to their places"
            hint = repair_command(root) or "the command that wrote them, typed again, moves the rest"
            raise IncompleteInstallError(message, hint=hint)


@contextmanager
def shared_read_lock(root: Path) -> Iterator[None]:
    """Keep every mmfw from changing the files in ``root`` meanwhile; a note says where there are no locks.

    Raises InUseError where one is at work there, and OSError where the lock cannot be taken.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(root / LOCK_NAME, shared=True, in_use_error=_in_use_error(root)))
        except OSError as error:
            if error.errno != errno.ENOLCK:
                raise
            _log.warning("%s: %s, so change nothing there meanwhile", error.filename, error.strerror)
        yield


def _in_use_error(root: Path) -> InUseError:
    return InUseError(f"{root}: another mmfw is at work here")


def finish_installation(root: Path) -> bool:
    """Make the moves that a process that died has left, if it has noted them; return whether all are made."""
    if staging_folder(root).exists():
        with suppress(InUseError), open_staging(root, wait=is_install_incomplete(root)):
            pass
    return not is_install_incomplete(root)


def fsync_files(files: Sequence[Path]) -> None:
    """Have the system write many files of one disk to it now. Raises OSError where the disk refuses one.

    Each file by itself makes the disk empty its cache once more. Linux has one call for all that is not yet
    written, at about a third of the cost; elsewhere only an administrator has one, so there several files
    wait for the disk at a time.
    """
    with Progress("Waiting for the disk", len(files), "file") as bar:
        if sys.platform == "linux" and len(files) > _MAX_PARALLEL_FLUSHES and _sync_file_system(files[0]):
            return
        with ThreadPoolExecutor(_MAX_PARALLEL_FLUSHES) as pool:
            for _ in pool.map(fsync_file, files):
                bar.advance(1)


def _sync_file_system(path: Path) -> bool:
    """Write to a disk all that is not yet there; whether the system could."""
    import ctypes

    descriptor = os.open(path, os.O_RDONLY)
    try:
        failed: int = ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)
    return failed == 0


def require_space(folder: Path, needed_bytes: int, folder_option: str = "--data-dir") -> None:
    """Refuse to begin what will not fit: so many bytes in a folder that need not exist yet.

    Raises ResourceError where the disk has not that much and a reserve of 64 MiB, and UsageError where there
    is no such drive; ``chosen_by`` is the option or variable that names another folder.
    """
    free = free_space(folder)
    if free is None:
        raise UsageError(
            f"{folder}: there is no drive {folder.anchor}", hint=f"choose another: {folder_option}"
        )
    if free < needed_bytes + _RESERVE_BYTES:
        needed = format_size(needed_bytes + _RESERVE_BYTES)
        message = f"{folder}: {needed} are needed and {format_size(free)} are free"
        hint = f"free some space, or choose a folder on another disk with {folder_option}"
        raise ResourceError(message, hint=hint)


def require_creatable_folders(mmf_paths: MmfPaths) -> None:
    """Refuse a cache or data folder that MMF could not create when it starts; leave nothing behind.

    Raises ResourceError for a full disk, else DataError.
    """
    for folder, variable in ((mmf_paths.cache_dir, "MMF_CACHE_DIR"), (mmf_paths.data_dir, "MMF_DATA_DIR")):
        nearest = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
        try:
            if not folder.is_dir():
                Path(mkdtemp(prefix=".mmfw-", dir=nearest)).rmdir()
        except OSError as error:
            hint = f"set {variable} to a folder that you can write to"
            message = f"{folder}: cannot be created ({error.strerror})"
            raise type(to_mmfw_error(error))(message, hint=hint) from error


def _crosses_disks(path: Path, folder: Path) -> bool:
    """Return whether no rename can move ``path`` to where ``folder`` is, which must not be empty."""
    try:
        os.rename(path, folder)  # noqa: PTH104
    except OSError as error:
        return error.errno == errno.EXDEV
    raise AssertionError(f"{folder} was empty")


def _copy_and_fsync(source: Path, target: Path) -> Path:
    """Copy a file or folder, have the disk write it, and return where it is."""
    files = []
    for path in (source, *sorted(source.rglob("*"))):  # shutil.copytree would collect errors, and go on
        to = target / path.relative_to(source)
        if path.is_dir() and not path.is_symlink():
            to.mkdir()
        else:
            with add_path_to_errors(to):
                files.append(Path(shutil.copy2(path, to, follow_symlinks=False)))
    fsync_files([file for file in files if not file.is_symlink()])
    return target


def _remove_staging(folder: Path) -> None:
    """Remove a staging folder; what cannot be removed now is removed at the next start.

    Only ``installing`` stays, which may be damaged: without it, a part would be believed.
    """
    others: list[Path] = []
    with suppress(OSError, ValueError, TypeError):
        others = [folder.parent / path for path in read_json(folder / _OTHER_FOLDERS_FILE)]
    for other in others:
        shutil.rmtree(other, ignore_errors=True)
        with suppress(OSError):  # another root may share that folder, by a link
            other.parent.rmdir()
    kept = {_MOVES_FILE, *(_OTHER_FOLDERS_FILE for other in others if other.parent.exists())}
    for path in folder.glob("*"):
        if path.name not in kept:
            with suppress(OSError):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    with suppress(OSError):
        folder.rmdir()
