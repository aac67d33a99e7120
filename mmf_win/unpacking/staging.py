"""Atomic installation of files: staged in a folder next to their targets, then moved, all or none.

::

    <dataset root>/
    ├── .mmfw-lock              locked by the process that uses the folder; released when that process ends
    └── .mmfw-staging/          unfinished files; removed at the end or at the next start
        ├── new/                files being written
        ├── SHA256SUMS          their manifest, once all of them are complete
        ├── old-xxxx/           replaced files, until all new files are in place
        ├── elsewhere           list of .mmfw-staging/old-xxxx/ folders in other target folders
        └── installing          list of the moves; exists from the first move until the last

While ``installing`` exists, no process reads the files in the root. If its process has died, the next process
that locks the folder completes the moves.
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
from mmf_win.integrity.manifest import repair_hint
from mmf_win.integrity.verify import LOCK_NAME
from mmf_win.locking import file_lock, is_locked
from mmf_win.paths import MmfPaths

_log = logging.getLogger(__name__)

_MOVES_FILE, _OTHER_FOLDERS_FILE = "installing", "elsewhere"
_COPY_SUFFIX = ".copy"
_RESERVE_BYTES = 64 << 20
_MAX_PARALLEL_FLUSHES = 8


#: A new file or folder, its target, and where the replaced file or folder is kept.
_PreparedMove: TypeAlias = "tuple[Path | None, Path, Path]"


class Staging:
    """The staging folder of a root folder; there is only one at a time.

    Attributes:
        folder: The staging folder.
        new_dir: Folder in it that new files are written to.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folder = staging_folder(root)
        self._moves_file = self.folder / _MOVES_FILE
        self.new_dir = self.folder / "new"

    def install(self, moves: Sequence[tuple[Path | None, Path]]) -> None:
        """Move each new file or folder to its target, in order; None instead of a file removes the target.

        Replaced files are kept until all moves have succeeded, and restored if one fails. After an interrupt,
        which may come between a move and its record, the next start completes the moves, as after a kill.
        """
        # A new folder each time: that of an earlier installation may contain a file that is still open.
        old_files_dir = Path(mkdtemp(prefix="old-", dir=self.folder))
        moves = [(new, target) for new, target in moves if new is not None or os.path.lexists(target)]
        prepared = self._prepare_moves(moves, old_files_dir)
        names = [[path and path.relative_to(self._root).as_posix() for path in move] for move in prepared]
        applied_renames: list[tuple[Path, Path]] = []
        write_json(self._moves_file, {"moves": names})
        try:
            self._apply_moves(prepared, applied_renames)
        except Exception:
            for old, new in reversed(applied_renames):
                if new.name.endswith(_COPY_SUFFIX) and os.path.lexists(old):
                    remove_tree(old)  # may already be partly removed
                rename(new, old)  # if this fails, `installing` stays; the next process completes the moves
            remove(self._moves_file)
            raise
        remove(self._moves_file)

    def finish_moves(self) -> None:
        """Complete the moves of a process that died before the last one."""
        with suppress(FileNotFoundError, KeyError, ValueError, TypeError):  # the list is missing or damaged
            saved = read_json(self._moves_file)
            old_files_dir = f"{self.folder.name}/{saved.get('old')}"  # all old files, in earlier versions
            saved_moves = [(*move, f"{old_files_dir}/{number}")[:3] for number, move in enumerate(saved["moves"])]
            root = self._root
            self._apply_moves([(new and root / new, root / target, root / old) for new, target, old in saved_moves], [])
            remove(self._moves_file)

    def _prepare_moves(self, moves: Sequence[tuple[Path | None, Path]], old_files_dir: Path) -> list[_PreparedMove]:
        """Return moves that are renames within one disk, after copying everything that cannot be renamed.

        A new file is copied if its target is on another disk (behind a link), an old folder if it is in a
        lower layer of an overlay file system. Old files are kept in a staging folder next to them.
        """
        parents = {target.parent for _, target in moves} - {self._root}
        other_folders = [staging_folder(parent.relative_to(self._root)) / old_files_dir.name for parent in parents]
        write_json(self.folder / _OTHER_FOLDERS_FILE, [folder.as_posix() for folder in other_folders])
        prepared: list[_PreparedMove] = []
        copied = set[Path]()  # already moved away when a later move with the same target is made
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
        """Make all moves that are not made yet, keep the old files, and append to ``applied_renames``."""
        for new, target, old in moves:
            if os.path.lexists(old) if new is None else not os.path.lexists(new):
                continue  # already made
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
    """Lock ``root`` and create an empty staging folder in it, which is removed on exit.

    An installation that a dead process has begun is completed first; other leftovers are removed.

    Args:
        root: Target folder; created if missing.
        wait: Wait for another process that uses ``root``; that process may have done the same work.

    Yields:
        The staging folder.

    Raises:
        InUseError: Another process uses ``root``, and ``wait`` is false.
    """
    root.mkdir(parents=True, exist_ok=True)
    in_use_error = _in_use_error(root)
    waiting = partial(_log.info, "%s; waiting for it to finish", in_use_error)
    with file_lock(root / LOCK_NAME, inf if wait else 0, waiting, in_use_error=in_use_error):
        staging = Staging(root)
        staging.finish_moves()
        _remove_staging(staging.folder)
        staging.new_dir.mkdir(parents=True, exist_ok=True)
        try:
            yield staging
        finally:
            if not is_install_incomplete(root):
                _remove_staging(staging.folder)


def staging_folder(root: Path) -> Path:
    """Return the folder with unfinished files of ``root``."""
    return root / ".mmfw-staging"


def is_install_incomplete(root: Path) -> bool:
    """Return whether an installation into ``root`` is in progress or was interrupted."""
    return (staging_folder(root) / _MOVES_FILE).exists()


def require_complete_install(root: Path) -> None:
    """Raise if an installation into ``root`` is in progress or was interrupted.

    Some files may then be missing or belong to an earlier set.

    Raises:
        InUseError: Another process is moving the files.
        IncompleteInstallError: The process that moved the files has died.
    """
    if is_install_incomplete(root):
        if is_locked(root / LOCK_NAME):
            raise InUseError(f"{root}: another mmfw process is installing files")
        if is_install_incomplete(root):  # the other process may have finished between the two checks
            message = f"{root}: installation of new files was interrupted"
            hint = repair_hint(root) or "run the interrupted command again"
            raise IncompleteInstallError(message, hint=hint)


@contextmanager
def shared_read_lock(root: Path) -> Iterator[None]:
    """Hold a shared lock that keeps other mmfw processes from changing the files in ``root``.

    Without support for locks, a warning is logged instead.

    Raises:
        InUseError: Another process is changing the files.
        OSError: The lock cannot be taken.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(root / LOCK_NAME, shared=True, in_use_error=_in_use_error(root)))
        except OSError as error:
            if error.errno != errno.ENOLCK:
                raise
            _log.warning("%s: %s; do not change files during this command", error.filename, error.strerror)
        yield


def _in_use_error(root: Path) -> InUseError:
    return InUseError(f"{root}: in use by another mmfw process")


def finish_installation(root: Path) -> bool:
    """Complete the installation of a process that died; return whether the files are complete."""
    if staging_folder(root).exists():
        with suppress(InUseError), open_staging(root, wait=is_install_incomplete(root)):
            pass
    return not is_install_incomplete(root)


def fsync_files(files: Sequence[Path]) -> None:
    """Flush many files of one disk to it.

    Each single fsync makes the disk flush its cache. Linux has one call for all unwritten data, at about a
    third of the cost. Other systems have it only for administrators, so several files are flushed in parallel
    there.

    Raises:
        OSError: A file cannot be written.
    """
    with Progress("Waiting for the disk", len(files), "file") as bar:
        if sys.platform == "linux" and len(files) > _MAX_PARALLEL_FLUSHES and _sync_file_system(files[0]):
            return
        with ThreadPoolExecutor(_MAX_PARALLEL_FLUSHES) as pool:
            for _ in pool.map(fsync_file, files):
                bar.advance(1)


def _sync_file_system(path: Path) -> bool:
    """Flush all unwritten data of the disk that has ``path``; return whether the system could do it."""
    import ctypes

    descriptor = os.open(path, os.O_RDONLY)
    try:
        failed: int = ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)
    return failed == 0


def require_space(folder: Path, needed_bytes: int, option: str = "--data-dir") -> None:
    """Raise if a disk has too little free space.

    Args:
        folder: Folder on the disk; it need not exist.
        needed_bytes: Size of the files to write; a reserve of 64 MiB is added.
        option: Option or variable that selects another folder, for the hint.

    Raises:
        ResourceError: The free space is not sufficient.
        UsageError: The drive does not exist.
    """
    free = free_space(folder)
    if free is None:
        raise UsageError(f"{folder}: drive {folder.anchor} not found", hint=f"choose another folder with {option}")
    if free < needed_bytes + _RESERVE_BYTES:
        needed = format_size(needed_bytes + _RESERVE_BYTES)
        message = f"{folder}: not enough disk space ({needed} needed, {format_size(free)} free)"
        hint = f"free some space, or choose a folder on another disk with {option}"
        raise ResourceError(message, hint=hint)


def require_creatable_folders(mmf_paths: MmfPaths) -> None:
    """Raise if MMF could not create its cache or data folder; no files are left behind.

    The error is a ResourceError for a full disk, otherwise a DataError.
    """
    for folder, variable in ((mmf_paths.cache_dir, "MMF_CACHE_DIR"), (mmf_paths.data_dir, "MMF_DATA_DIR")):
        nearest = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
        try:
            if not folder.is_dir():
                Path(mkdtemp(prefix=".mmfw-", dir=nearest)).rmdir()
        except OSError as error:
            hint = f"set {variable} to a writable folder"
            message = f"{folder}: cannot be created ({error.strerror})"
            raise type(to_mmfw_error(error))(message, hint=hint) from error


def _crosses_disks(path: Path, folder: Path) -> bool:
    """Return whether ``path`` and ``folder``, which must not be empty, are on different file systems."""
    try:
        os.rename(path, folder)  # noqa: PTH104 – always fails; the error shows whether a rename is possible
    except OSError as error:
        return error.errno == errno.EXDEV
    raise AssertionError(f"{folder} was empty")


def _copy_and_fsync(source: Path, target: Path) -> Path:
    """Copy a file or folder, flush the copy, and return its path."""
    files = []
    for path in (source, *sorted(source.rglob("*"))):  # shutil.copytree does not stop at the first error
        copy = target / path.relative_to(source)
        if path.is_dir() and not path.is_symlink():
            copy.mkdir()
        else:
            with add_path_to_errors(copy):
                files.append(Path(shutil.copy2(path, copy, follow_symlinks=False)))
    fsync_files([file for file in files if not file.is_symlink()])
    return target


def _remove_staging(folder: Path) -> None:
    """Remove a staging folder; files that cannot be removed now are removed at the next start.

    ``installing`` is kept, even if it is damaged: without it, an incomplete set of files would seem complete.
    """
    other_folders: list[Path] = []
    with suppress(OSError, ValueError, TypeError):
        other_folders = [folder.parent / path for path in read_json(folder / _OTHER_FOLDERS_FILE)]
    for other_folder in other_folders:
        shutil.rmtree(other_folder, ignore_errors=True)
        with suppress(OSError):  # another root may share that folder through a link
            other_folder.parent.rmdir()
    kept_names = {_MOVES_FILE, *(_OTHER_FOLDERS_FILE for other_folder in other_folders if other_folder.parent.exists())}
    for path in folder.glob("*"):
        if path.name not in kept_names:
            with suppress(OSError):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    with suppress(OSError):
        folder.rmdir()
