"""The checkpoints of a run: which are intact, which to use, and how the bytes of one are kept.

A training replaces ``best.ckpt`` while another command predicts with it; a score must name the weights that
it was measured with. So they are pinned, whatever happens to the file's name. Needs no torch.
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

#: The problem of a file that is whole, but not the run's own.
FOREIGN_PROBLEM = "it is whole, but this run has not saved it, by its record of hashes"


@dataclass(frozen=True)
class SavedCheckpoint:
    """One name of a checkpoint.

    Attributes:
        name: its place in the run's folder of checkpoints, with ``/``.
        path: the file.
        update, epoch: when it was saved; None where it holds weights alone, or cannot be read.
        auroc: what this run's validation gave at that update, 0 to 1.
        size: bytes.
        written: seconds since the epoch.
        same_as: other names of the same bytes, which take no space of their own.
        problem: why it does not open, or :data:`FOREIGN_PROBLEM`; None when it is intact.
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
    """A checkpoint that was read, from its first byte to its last.

    Attributes:
        problem: why it is not an intact checkpoint; None if it is.
        sha256: the hash of an intact one, in hexadecimal digits.
        state: what tells it from other files, and from later states of its own, by any of its names.
    """

    path: Path
    problem: str | None
    sha256: str
    file_stamp: tuple[int, ...]

    @classmethod
    def read(cls, path: Path, advance: AdvanceCallback) -> CheckedFile:
        """Read a checkpoint, of which every byte is checked."""
        stamp, digest = _file_stamp(path) if path.is_file() else (), hashlib.sha256()
        problem = torch_file.find_problem(path, advance, digest.update)
        return cls(path, problem, digest.hexdigest(), stamp)


def _file_stamp(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def check_file(path: Path) -> CheckedFile:
    """Read a checkpoint, and show how far that is."""
    with Progress(f"checking {path.name}", path.stat().st_size if path.is_file() else 0) as progress:
        return CheckedFile.read(path, progress.advance)


def select_checkpoint(run: Run, checkpoint_spec: str) -> CheckedFile:
    """The checkpoint that ``best``, ``last`` or a path stands for.

    A broken ``last``, or one that is not the run's own, falls back to the newest intact one, and ``best`` to
    ``last`` in a run too short to have a best; a note names what is passed over. Raises CheckpointError where
    there is none, or the only ones are broken.
    """
    if checkpoint_spec not in ("best", "last"):
        file = require_intact(checkpoint_spec, "give best, last, or the file of an intact checkpoint")
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
        raise CheckpointError(f"{rejected_path}: {reason}", hint="no other checkpoint of this run is intact")
    hint = f"training makes one; see {run.log} for how the run went"
    raise CheckpointError("has no checkpoint", hint=hint, prefix=f"run {run.id}")


def _foreign_problem(run: Run, file: CheckedFile, events: Sequence[Event]) -> str | None:
    """Why an intact checkpoint is not the run's own, by the hashes in its events; None where it may be.

    Nobody knows where a hash is missing, as of earlier versions, or the worker died before it told one. A run
    that was copied while it trained lacks events of checkpoints, whose configuration names the run.
    """
    saved = [event for event in events if event["kind"] == "checkpoint"]
    hashes = {event.get("sha256") for event in saved}
    if (
        not saved
        or None in hashes
        or file.sha256 in hashes
        or (progress := read_checkpoint_progress(file.path)) is None
    ):
        return None
    started_saves = Counter(event.get("update") for event in events if event["kind"] == "saving")
    updates = Counter(event.get("update") for event in saved)
    if progress.update in started_saves - updates:
        return None
    suffix = "/".join(("", *run.checkpoints.parts[-4 if is_task_folder(run.path.parent.parent) else -3 :]))
    if progress.update not in updates and PureWindowsPath(progress.save_dir).as_posix().endswith(suffix):
        message = "%s: intact at update %d; the run's record is older and lacks it"
        _log.warning(message, file.path, progress.update)
        return None
    return FOREIGN_PROBLEM


def warn_if_foreign(run: Run, file: CheckedFile) -> None:
    """Say so where a checkpoint that is used as the run's is not its own."""
    if problem := _foreign_problem(run, file, read_events(run.events)):
        _log.warning("%s: %s (%s)", file.path, problem, run.id)


def require_no_foreign_best(run: Run) -> None:
    """Refuse to train with another run's ``best.ckpt``, which MMF would take as the run's own in the end.

    The hint of the CheckpointError names a file that is the run's own, if there is one.
    """
    best, events = run.checkpoints / "best.ckpt", read_events(run.events)
    if (problem := _foreign_problem(run, check_file(best), events)) is None:
        return
    hashes = [event["sha256"] for event in events if event["kind"] == "checkpoint" and event.get("best")]
    matches = (
        path for path in find_numbered_checkpoints(run.checkpoints) if file_digest(path).hex() in hashes[-1:]
    )
    copy = next(matches, None)
    advice = f"put a copy of {copy} in its place" if copy else "the next validation makes the best anew"
    raise CheckpointError(f"{best}: {problem}", hint=f"move it away; {advice}")


def require_no_blocking_folders(run: Run) -> None:
    """Raise CheckpointError where a folder has the name under which the run would save a checkpoint."""
    for path in filter(Path.is_dir, _candidates(run, "last", read_events(run.events))):
        raise CheckpointError(f"{path}: it is a folder", hint="move it away: a checkpoint is saved there")


def can_resume(run: Run) -> bool:
    """Whether the run has an intact checkpoint of its own."""
    events = read_events(run.events)
    files = map(check_file, _candidates(run, "last", events))
    return any((file.problem or _foreign_problem(run, file, events)) is None for file in files)


def require_intact(name: str, hint: str = "give the file of an intact checkpoint") -> CheckedFile:
    """The intact checkpoint that a user names by its file; else a CheckpointError with ``hint``."""
    file = check_file(expand_home(name).absolute())
    if file.problem:
        raise CheckpointError(f"{file.path}: {file.problem}", hint=hint)
    return file


def preserve_last_checkpoint(run: Run, checkpoint: Path) -> str:
    """Keep the last checkpoint of a run that goes on from an earlier one, and say what is set aside."""
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
    later = previous.update - resumed.update
    updates = "the update" if later == 1 else f"the {later} updates"
    return (
        f", update {resumed.update}; {updates} after it {'is' if later == 1 else 'are'} set aside as {kept}"
    )


def _candidates(run: Run, checkpoint_spec: str, events: Sequence[Event]) -> list[Path]:
    """Existing files, the preferred one first; none that a resume from an earlier one has set aside."""
    folder, superseded = run.checkpoints, superseded_updates(events)
    current, best = folder / "current.ckpt", folder / "best.ckpt"
    last = [
        path
        for path in find_numbered_checkpoints(folder)
        if int(path.stem.rpartition("_")[2]) not in superseded
    ]
    progress = read_checkpoint_progress(current) if superseded else None
    if progress is None or progress.update not in superseded:
        last.insert(0, current)
    ordered = [best, *last] if checkpoint_spec == "best" else [*last, best]
    return [path for path in ordered if path.exists()]


def list_checkpoints(run: Run) -> list[SavedCheckpoint]:
    """Every checkpoint of a run, each read from its first byte to its last; links are read once.

    One that is removed meanwhile, in a run that is being trained, is left out.
    """
    folder, stats = run.checkpoints, {}
    # The files with the commonest names first.
    models = (*find_numbered_checkpoints(folder), *sorted(find_superseded_checkpoints(folder)))
    for path in (*sorted(folder.glob("*.ckpt")), *models, *sorted(folder.glob("*_final.pth"))):
        with suppress(FileNotFoundError):
            stats[path] = path.stat()
    names: defaultdict[tuple[int, int], list[Path]] = defaultdict(list)
    for path, stat in stats.items():
        names[stat.st_dev, stat.st_ino].append(path)
    # The final validation is of the best checkpoint, whatever the update.
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
    """A checkpoint that keeps its bytes, or whose change is noticed.

    Attributes:
        original: the file that the user named or that stands for ``best`` or ``last``.
        path: what to read instead: a second name of the same bytes, or ``original`` where there is none.
        hashed: the hash of the bytes, where they were read already.
    """

    original: Path
    path: Path
    known_sha256: str | None = None

    @contextmanager
    def restore_name_in_errors(self) -> Iterator[None]:
        """Let an error of a worker, which knows the pin only, name the original file."""
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
        """Raise CheckpointError if the file was replaced since it was pinned, and had no second name."""
        if self.path == self.original and self._hash() != self.sha256():
            message = f"{self.original}: it was replaced while it was in use"
            raise CheckpointError(message, hint="run the same command again when no training writes it")

    def sha256(self) -> str:
        """Return the hash of the bytes, in hexadecimal digits."""
        self.known_sha256 = self.known_sha256 or self._hash()
        return self.known_sha256

    def _hash(self) -> str:
        return hash_file(self.path, f"hashing {self.path.name}")


@contextmanager
def pin_checkpoint(
    run: Run, checkpoint: Path, *, use_link: bool = True, checked_file: CheckedFile | None = None
) -> Iterator[PinnedCheckpoint]:
    """Pin a checkpoint in the folder of a run, which is not removed meanwhile.

    The pin is a hard link, or a copy if the file system has no links. If it cannot be made, since the run may
    only be read, the file is hashed before and after it is used. A pin that a killed command has left is
    removed by the next one.

    Args:
        by_name: whether to make a second name; else the file is hashed before and after.
        checked: what was read of it before; its hash is taken where the file is the same still.
    """
    if run.pins.is_dir():
        with (
            suppress(MmfwError, OSError),
            file_lock(run.usage_lock_file),
        ):  # nobody reads, so these are left over
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
            if os.getpid() == owner_pid:  # not a fork, which may end before
                with suppress(OSError):
                    remove_tree(folder)
                    run.pins.rmdir()  # the last one
