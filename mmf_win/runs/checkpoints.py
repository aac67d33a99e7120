"""Checkpoints of a run: verifying, selecting and pinning them.

A training replaces ``best.ckpt`` while another command may predict with it, and a score must name the weights
that it was measured with. Therefore a checkpoint in use is pinned: its bytes are kept under a second name.
This module needs no torch.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

from mmf_win.console import Progress, Timestamp
from mmf_win.errors import CheckpointError, MmfwError
from mmf_win.files import link_or_copy, remove_tree
from mmf_win.integrity import torch_file
from mmf_win.integrity.digest import file_digest, hash_file
from mmf_win.locking import file_lock
from mmf_win.paths import expand_home
from mmf_win.protocol import Event, read_events
from mmf_win.runs.folder import Run, is_task_folder, usage_lock
from mmf_win.runs.scores import val_auroc
from mmf_win.threads import AdvanceCallback
from mmf_win.upstream.checkpoint_files import (
    find_numbered_checkpoints,
    find_superseded_checkpoints,
    read_checkpoint_progress,
    superseded_updates,
)

_log = logging.getLogger(__name__)

#: Problem of an intact checkpoint that does not belong to the run.
FOREIGN_PROBLEM = "intact, but not written by this run (hash not in events.jsonl)"


@dataclass(frozen=True)
class SavedCheckpoint:
    """One file name of a checkpoint.

    Attributes:
        name: Path relative to the run's checkpoint folder, with ``/``.
        path: Absolute path.
        update, epoch: Position in the training; ``None`` if the file has only weights or cannot be read.
        auroc: Validation AUROC of this run at that update, 0 to 1.
        size: Size in bytes.
        written: Modification time in seconds since the epoch.
        same_as: Other names (hard links) of the same file; they take no space of their own.
        problem: Reason why the file is damaged, or :data:`FOREIGN_PROBLEM`; ``None`` if it is usable.
    """

    name: str
    path: str
    update: int | None
    epoch: int | None
    auroc: float | None
    size: int
    written: Timestamp
    same_as: tuple[str, ...]
    problem: str | None


class CheckedFile(NamedTuple):
    """A checkpoint file that was read completely.

    Attributes:
        path: The file.
        problem: Reason why it is not an intact checkpoint; ``None`` if it is.
        sha256: SHA-256 of an intact file, in hexadecimal.
        file_stamp: Device, inode, size and modification time, which identify this state under any name.
    """

    path: Path
    problem: str | None
    sha256: str
    file_stamp: tuple[int, ...]

    @classmethod
    def read(cls, path: Path, advance: AdvanceCallback) -> CheckedFile:
        """Read a checkpoint and check every byte."""
        stamp, digest = _file_stamp(path) if path.is_file() else (), hashlib.sha256()
        problem = torch_file.find_problem(path, advance, digest.update)
        return cls(path, problem, digest.hexdigest(), stamp)


def _file_stamp(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def check_file(path: Path) -> CheckedFile:
    """Read and check a checkpoint, showing progress."""
    with Progress(f"checking {path.name}", path.stat().st_size if path.is_file() else 0) as progress:
        return CheckedFile.read(path, progress.advance)


def select_checkpoint(run: Run, checkpoint_spec: str) -> CheckedFile:
    """Return the checkpoint that ``best``, ``last`` or a path refers to.

    A damaged or foreign ``last`` falls back to the newest intact checkpoint; ``best`` falls back to ``last``,
    for example in a run too short to have a best one. A warning names the skipped files.

    Raises:
        CheckpointError: There is no checkpoint, or none is usable.
    """
    if checkpoint_spec not in ("best", "last"):
        file = require_intact(checkpoint_spec, "pass best, last or the path of an intact checkpoint")
        warn_if_foreign(run, file)
        return file
    rejected: list[tuple[Path, str]] = []
    events = read_events(run.events)
    for path in _candidates(run, checkpoint_spec, events):
        file = check_file(path)
        problem = file.problem or _foreign_problem(run, file, events)
        if problem is None:
            for rejected_path, reason in rejected:
                _log.warning("%s: %s; using %s instead", rejected_path, reason, path.name)
            return file
        rejected.append((path, problem))
    if rejected:
        rejected_path, reason = rejected[0]
        raise CheckpointError(f"{rejected_path}: {reason}", hint="this run has no other intact checkpoint")
    hint = f"see {run.log} for the output of the training"
    raise CheckpointError("has no checkpoint", hint=hint, prefix=f"run {run.id}")


def _foreign_problem(run: Run, file: CheckedFile, events: Sequence[Event]) -> str | None:
    """Return why an intact checkpoint does not belong to the run, or ``None`` if it may belong to it.

    The hashes in the run's events decide. A checkpoint is accepted if a hash is missing: earlier versions did
    not record it, and a worker may be killed between saving and recording. A run that was copied during its
    training lacks the last events; a checkpoint is then accepted if its configuration names this run.
    """
    saved = [event for event in events if event["kind"] == "checkpoint"]
    hashes = {event.get("sha256") for event in saved}
    if not saved or None in hashes or file.sha256 in hashes:
        return None
    progress = read_checkpoint_progress(file.path)
    if progress is None:
        return None
    started_saves = Counter(event.get("update") for event in events if event["kind"] == "saving")
    updates = Counter(event.get("update") for event in saved)
    if progress.update in started_saves - updates:
        return None
    suffix = "/".join(("", *run.checkpoints.parts[-4 if is_task_folder(run.path.parent.parent) else -3 :]))
    if progress.update not in updates and PureWindowsPath(progress.save_dir).as_posix().endswith(suffix):
        message = "%s: intact at update %d, but missing from the events of the run"
        _log.warning(message, file.path, progress.update)
        return None
    return FOREIGN_PROBLEM


def warn_if_foreign(run: Run, file: CheckedFile) -> None:
    """Log a warning if a checkpoint that is used for a run was not written by it."""
    if problem := _foreign_problem(run, file, read_events(run.events)):
        _log.warning("%s: %s (%s)", file.path, problem, run.id)


def require_no_foreign_best(run: Run) -> None:
    """Refuse to train with a foreign ``best.ckpt``, which MMF would load at the end as the run's own.

    Raises:
        CheckpointError: The file is foreign; the hint names a copy of the run's own best, if there is one.
    """
    best, events = run.checkpoints / "best.ckpt", read_events(run.events)
    if (problem := _foreign_problem(run, check_file(best), events)) is None:
        return
    hashes = [event["sha256"] for event in events if event["kind"] == "checkpoint" and event.get("best")]
    matches = (path for path in find_numbered_checkpoints(run.checkpoints) if file_digest(path).hex() in hashes[-1:])
    copy = next(matches, None)
    advice = f"put a copy of {copy} in its place" if copy else "the next validation saves a new one"
    raise CheckpointError(f"{best}: {problem}", hint=f"move the file away; {advice}")


def require_no_blocking_folders(run: Run) -> None:
    """Raise ``CheckpointError`` if a folder has the name under which the run would save a checkpoint."""
    for path in filter(Path.is_dir, _candidates(run, "last", read_events(run.events))):
        raise CheckpointError(f"{path}: is a folder, not a file", hint="move it away; the run saves a checkpoint here")


def can_resume(run: Run) -> bool:
    """Return whether the run has an intact checkpoint of its own."""
    events = read_events(run.events)
    files = map(check_file, _candidates(run, "last", events))
    return any((file.problem or _foreign_problem(run, file, events)) is None for file in files)


def require_intact(name: str, hint: str = "pass the path of an intact checkpoint") -> CheckedFile:
    """Return the checkpoint that a user named by its path; raise ``CheckpointError`` if it is not intact."""
    file = check_file(expand_home(name).absolute())
    if file.problem:
        raise CheckpointError(f"{file.path}: {file.problem}", hint=hint)
    return file


def preserve_last_checkpoint(run: Run, checkpoint: Path) -> str:
    """Keep the last checkpoint of a run that is resumed from an earlier one.

    Returns:
        Text for the progress message: the update, and the file that keeps the last checkpoint. Empty if
        there is no later checkpoint.
    """
    last = run.checkpoints / "current.ckpt"
    resumed, previous = read_checkpoint_progress(checkpoint), read_checkpoint_progress(last)
    if resumed is None or previous is None or previous.update <= resumed.update:
        return ""
    models = run.checkpoints / "models"
    models.mkdir(exist_ok=True)
    names = (models / f"model_{previous.update}_aside_{number}.ckpt" for number in count(1))
    kept = next(path for path in names if not path.exists() or path.samefile(last))
    if not kept.exists():
        link_or_copy(last, kept)
    return f", update {resumed.update}; the checkpoint of update {previous.update} is kept as {kept}"


def _candidates(run: Run, checkpoint_spec: str, events: Sequence[Event]) -> list[Path]:
    """Return the existing checkpoint files, the preferred one first, without superseded ones."""
    folder, superseded = run.checkpoints, superseded_updates(events)
    current, best = folder / "current.ckpt", folder / "best.ckpt"
    last = [path for path in find_numbered_checkpoints(folder) if int(path.stem.rpartition("_")[2]) not in superseded]
    progress = read_checkpoint_progress(current) if superseded else None
    if progress is None or progress.update not in superseded:
        last.insert(0, current)
    ordered = [best, *last] if checkpoint_spec == "best" else [*last, best]
    return [path for path in ordered if path.exists()]


def list_checkpoints(run: Run) -> list[SavedCheckpoint]:
    """Return every checkpoint of a run, checked completely, with one entry per file name.

    Hard links to the same file are read once. A file that a training removes during the check is not listed.
    """
    folder, stats = run.checkpoints, {}
    # The well-known names come first.
    models = (*find_numbered_checkpoints(folder), *sorted(find_superseded_checkpoints(folder)))
    for path in (*sorted(folder.glob("*.ckpt")), *models, *sorted(folder.glob("*_final.pth"))):
        with suppress(FileNotFoundError):
            stats[path] = path.stat()
    names: defaultdict[tuple[int, int], list[Path]] = defaultdict(list)
    for path, stat in stats.items():
        names[stat.st_dev, stat.st_ino].append(path)
    # The final validation uses the best checkpoint, whatever its update says.
    events = read_events(run.events)
    scored = ((event, val_auroc(event)) for event in events if not event.get("final"))
    scores = {event.get("update"): score for event, score in scored if score is not None}
    saved = {}
    total = sum(stats[paths[0]].st_size for paths in names.values())
    with Progress("checking checkpoints", total) as progress:
        for paths in names.values():
            file = CheckedFile.read(paths[0], progress.advance)
            problem = file.problem or _foreign_problem(run, file, events)
            position = None if problem else read_checkpoint_progress(paths[0])
            names_in_folder = {path: path.relative_to(folder).as_posix() for path in paths}
            for path in paths:
                saved[path] = SavedCheckpoint(
                    name=names_in_folder[path],
                    path=str(path),
                    update=position.update if position else None,
                    epoch=position.epoch if position else None,
                    auroc=scores.get(position.update) if position else None,
                    size=stats[path].st_size,
                    written=Timestamp(stats[path].st_mtime),
                    same_as=tuple(names_in_folder[other] for other in paths if other != path),
                    problem=problem,
                )
    return [saved[path] for path in stats if saved[path].problem is None or path.exists()]


@dataclass
class PinnedCheckpoint:
    """A checkpoint whose bytes are kept while it is in use, or whose replacement is detected.

    Attributes:
        original: The file that the user named, or that ``best`` or ``last`` refers to.
        path: The file to read: a second name of the same bytes, or ``original`` if there is none.
        known_sha256: SHA-256 of the bytes if they were read before.
    """

    original: Path
    path: Path
    known_sha256: str | None = None

    @contextmanager
    def restore_name_in_errors(self) -> Iterator[None]:
        """Replace the path of the pin by the original path in errors of the block."""
        try:
            yield
        except MmfwError as error:
            error.args = (str(error).replace(str(self.path), str(self.original)),)
            error.hint = error.hint and error.hint.replace(str(self.path), str(self.original))
            raise
        except OSError as error:
            if error.filename == str(self.path):
                error.filename = str(self.original)
            raise

    def require_unchanged(self) -> None:
        """Raise ``CheckpointError`` if a file without a second name was replaced since it was pinned."""
        if self.path == self.original and self._hash() != self.sha256():
            message = f"{self.original}: replaced while in use"
            raise CheckpointError(message, hint="run the same command again after the training")

    def sha256(self) -> str:
        """Return the SHA-256 of the bytes, in hexadecimal."""
        self.known_sha256 = self.known_sha256 or self._hash()
        return self.known_sha256

    def _hash(self) -> str:
        return hash_file(self.path, f"hashing {self.path.name}")


@contextmanager
def pin_checkpoint(
    run: Run, checkpoint: Path, *, use_link: bool = True, checked_file: CheckedFile | None = None
) -> Iterator[PinnedCheckpoint]:
    """Pin a checkpoint in the folder of a run and keep the run from being removed.

    The pin is a hard link, or a copy if the file system has no links. If it cannot be created, for example in
    a read-only run, the file is hashed before and after its use. The next command removes the pins of a
    killed one.

    Args:
        run: The run.
        checkpoint: The file to pin.
        use_link: Create a second name; otherwise hash the file before and after its use.
        checked_file: Result of an earlier check; its hash is used if the file is still the same.

    Yields:
        The pinned checkpoint.
    """
    if run.pins.is_dir():
        # The exclusive lock is free only if no command uses the run, so killed commands left the pins.
        with suppress(MmfwError, OSError), file_lock(run.usage_lock_file):
            remove_tree(run.pins)
    with usage_lock(run):
        pin, owner_pid = PinnedCheckpoint(checkpoint, checkpoint), os.getpid()
        folder = run.pins / f"{owner_pid}-{os.urandom(4).hex()}"
        try:
            with suppress(OSError):
                if use_link:
                    run.pins.mkdir(exist_ok=True)
                    folder.mkdir()
                    link_or_copy(checkpoint, folder / checkpoint.name)
                    pin.path = folder / checkpoint.name
            if checked_file is not None and checked_file.file_stamp == _file_stamp(pin.path):
                pin.known_sha256 = checked_file.sha256
            elif pin.path == checkpoint:
                pin.sha256()
            with pin.restore_name_in_errors():
                yield pin
        finally:
            if os.getpid() == owner_pid:  # not a forked process, which may exit earlier
                with suppress(OSError):
                    remove_tree(folder)
                    run.pins.rmdir()  # fails if there are other pins
