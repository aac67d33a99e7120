"""The folder of a run.

::

    <save dir>/<name>/<YYYY-mm-ddTHH-MM-SS>/
      request.json      the run request
      events.jsonl      events of all training attempts
      log.txt           complete output of the training workers
      events.out.tfevents.*    TensorBoard curves
      attempts/<n>/     request, MMF configuration and exit.json (the only record of the outcome) of each
                        attempt; for predictions also events.jsonl, log.txt and logs/
      lock              locked while the run is being trained
      readers           shared lock of predictions that read its checkpoints
      logs/             MMF's own logs
      checkpoints/      MMF's own folder: best.ckpt, current.ckpt, models/, *_final.pth, config.yaml
      pins/             second names of checkpoints that are in use
      reports/          predictions, their metrics and reports
      tracking/         upload states for MLflow, ClearML and W&B
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from html import escape
from itertools import count
from pathlib import Path
from typing import Any, TypedDict

from mmf_win import files
from mmf_win.console import format_command
from mmf_win.errors import DataError, InUseError
from mmf_win.files import write_json
from mmf_win.locking import file_lock, is_locked
from mmf_win.paths import ChildPath, create_first_free, create_timestamped_dir, reserve_file, short_portable_name
from mmf_win.protocol import MAX_TIMESTAMP, AttemptFolder
from mmf_win.protocol.attempt import EVENTS, LOG
from mmf_win.records import decode_json, from_stored, read_record, to_stored
from mmf_win.runs.request import RunRequest, drop_start_settings

#: Folder of the sweeps in the save dir. A sweep has a folder per task, which contains the runs of the task.
SWEEPS_DIR = "sweeps"
#: The file that identifies the folder of a sweep, and those that identify the folder of a task.
SPECIFICATION_FILE, PARAMETERS_FILE, TASK_RECORD_FILE = "sweep.yaml", "param", "task.json"
_PIN_CLEANUP_SECONDS = 2.0  # time for another command to remove the pins of a killed one


class _CreationRecord(TypedDict):
    created: float


@dataclass(frozen=True)
class Run:
    """The folder of one run and the names of the files in it."""

    path: Path

    #: The run request; a folder without it is not a run.
    request_file = ChildPath("request.json")
    #: Events of all training attempts.
    events = ChildPath(EVENTS)
    #: Locked while the run is being trained.
    training_lock_file = ChildPath("lock")
    #: Complete output of the training workers.
    log = ChildPath(LOG)
    #: Outcome of the last training, in runs that an earlier version trained last.
    legacy_outcome_file = ChildPath("exit.json")
    #: Shared lock of the processes that use the run.
    usage_lock_file = ChildPath("readers")
    #: MMF's own logs.
    logs = ChildPath("logs")
    #: MMF's save_dir.
    checkpoints = ChildPath("checkpoints")
    #: Second names of checkpoints in use, see :mod:`mmf_win.runs.checkpoints`.
    pins = ChildPath("pins")
    #: Predictions, their metrics and reports.
    reports = ChildPath("reports")
    #: Upload states of trackers.
    tracking = ChildPath("tracking")

    @classmethod
    def create(cls, save_dir: Path, name: str) -> Run:
        """Create an empty run folder."""
        return cls(create_timestamped_dir(save_dir / short_portable_name(name)))

    @property
    def id(self) -> str:
        """ID of the run for commands: ``<name>/<time>``, or the ID of its task if that has only this run."""
        short_id, task = "/".join(self.path.parts[-2:]), self.path.parent.parent
        if not is_task_folder(task):
            return short_id
        return f"{task_id(task)}/{short_id}" if len([*task.glob("*/*/request.json")]) > 1 else task_id(task)

    def _repr_html_(self) -> str:
        """Return the newest report for notebooks, in a sandboxed frame because it contains texts of memes."""
        pages = sorted(self.reports.glob("*.html"), key=lambda page: page.stat().st_mtime)
        if not pages:
            report = escape(format_command("mmfw", "report", self.path))
            return f"<p>Run {escape(self.id)} has no report yet; create one with <code>{report}</code>.</p>"
        page = escape(pages[-1].read_text(encoding="utf-8", errors="replace"))
        return f'<iframe sandbox="allow-scripts" srcdoc="{page}" width="100%" height="800"></iframe>'

    def reserve_prediction_file(self, split: str, folder: Path | None = None) -> AbstractContextManager[Path]:
        """Reserve the name of a new prediction file, which the block writes.

        Args:
            split: Name of the split.
            folder: Folder of the file; ``None`` for the run's reports.

        Returns:
            A context manager that yields the path.
        """
        return reserve_file(folder or self.reports, f"hateful_memes_{self.path.parent.name}_{split}_", ".csv")

    def create_attempt(self) -> AttemptFolder:
        """Create the next numbered folder under ``attempts``."""
        attempts = self.path / "attempts"
        attempts.mkdir(exist_ok=True)
        numbers = count(max(self._attempt_numbers(), default=0) + 1)
        return AttemptFolder(create_first_free((attempts / str(number) for number in numbers), Path.mkdir))

    def attempt(self, name: int | str) -> AttemptFolder:
        """Return the folder of an attempt, given its number or its name in events."""
        return AttemptFolder(self.path / "attempts" / str(name))

    def _attempt_numbers(self) -> list[int]:
        """Return the numbers of the attempts, newest first."""
        numbers: list[int] = []
        with suppress(FileNotFoundError, NotADirectoryError):
            names = (entry.name for entry in (self.path / "attempts").iterdir())
            numbers = sorted((int(name) for name in names if name.isdecimal()), reverse=True)
        return numbers

    @property
    def outcome_file(self) -> Path:
        """The file with the outcome of the last training, in the folder of its attempt.

        It does not exist while the training runs, or if mmfw was killed together with the worker. A file of
        an earlier version takes precedence until the next training removes it.

        Raises:
            OSError: The attempts cannot be listed.
        """
        if self.legacy_outcome_file.exists():
            return self.legacy_outcome_file
        attempts = (folder for folder in map(self.attempt, self._attempt_numbers()) if folder.is_training())
        return next((folder.outcome_file for folder in attempts), self.legacy_outcome_file)

    def save_request(self, request: RunRequest) -> None:
        """Save the run request without the settings that choose the checkpoint to start from."""
        write_json(self.request_file, to_stored(replace(request, settings=drop_start_settings(request.settings))))

    def creation_time(self) -> tuple[float, bool] | None:
        """Return when the run was created and whether its request records that time.

        Without a recorded time, the modification time of the request is used. The times in folder names are
        not reliable: they are local times, and folders may be renamed.

        Returns:
            Seconds since the epoch and whether they are recorded; ``None`` if the folder is not a run.
        """
        file = os.path.join(self.path, "request.json")  # noqa: PTH118 - faster, for thousands of runs
        try:
            info = os.stat(file)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:  # request() reports the error
            return 0.0, False
        with suppress(OSError, ValueError, LookupError):
            if stat.S_ISREG(info.st_mode):
                with open(file, "rb") as stream:  # noqa: PTH123
                    created = decode_json(stream.read(), _CreationRecord)["created"]
                if 0 <= created < MAX_TIMESTAMP:
                    return created, True
        return info.st_mtime, False

    def request(self) -> RunRequest:
        """Return the run request; raise ``DataError`` if it cannot be read or is invalid."""
        try:
            values = read_record(self.request_file, dict[str, Any])
            request = from_stored({"created": self.request_file.stat().st_mtime, **values}, RunRequest)
            request.mmfw_settings  # noqa: B018 - raises for a value of the wrong type
            if "overrides" in values:
                raise ValueError("written by an incompatible version of mmfw")
            if not request.model:
                raise ValueError("no model")
            if missing := {"train", "val", "test"} - request.splits.keys():
                raise ValueError(f"no split for {min(missing)}")
            if not 0 <= request.created < MAX_TIMESTAMP:
                raise ValueError(f"invalid creation time {request.created}")
            return request
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            message = f"{self.request_file}: invalid run request ({reason})"
            hint = f"remove this run with `{format_command('mmfw', 'runs', 'rm', self.path)}`"
            saved = (self.checkpoints / f"{name}.ckpt" for name in ("best", "current"))
            if weights := next(filter(Path.is_file, saved), None):
                train_command = format_command("mmfw", "train", "PRESET", "--init", weights)
                hint = f"start a new run from its weights with `{train_command}`, or {hint}"
            raise DataError(message, hint=hint) from None


def is_task_folder(folder: Path) -> bool:
    """Return whether a folder belongs to a sweep task, even if one of the task's files is missing."""
    return (folder / PARAMETERS_FILE).is_file() or (folder / TASK_RECORD_FILE).is_file()


def task_id(folder: Path) -> str:
    """Return ``sweeps/<sweep>/<task>``, or the path of a task elsewhere; both refer to its newest run."""
    return "/".join(folder.parts[-3:]) if folder.parts[-3:-2] == (SWEEPS_DIR,) else str(folder)


def require_not_training(run: Run) -> None:
    """Raise ``InUseError`` if a process trains the run."""
    if is_locked(run.training_lock_file):
        raise _in_training_error(run)


def training_lock(run: Run) -> AbstractContextManager[int]:
    """Hold the training lock of a run.

    The worker inherits the descriptor, so the lock survives if this process is killed.

    Returns:
        A context manager that yields the descriptor of the lock; it raises ``InUseError`` on entry if another
        process trains the run.
    """
    return file_lock(run.training_lock_file, in_use_error=_in_training_error(run))


def require_unused(run: Run) -> None:
    """Check that no process trains the run, predicts with it or uploads it to a tracker.

    Raises:
        InUseError: The run is in use.
    """
    require_not_training(run)
    error = InUseError(f"run {run.id} is in use by a prediction or an upload")
    with file_lock(run.usage_lock_file, in_use_error=error):
        pass


def usage_lock(run: Run) -> AbstractContextManager[int]:
    """Hold a shared lock that keeps the run from being removed.

    Returns:
        A context manager that raises ``InUseError`` on entry if the run is being removed.
    """
    error = InUseError(f"run {run.id} is being removed")
    return file_lock(run.usage_lock_file, _PIN_CLEANUP_SECONDS, shared=True, in_use_error=error)


def _in_training_error(run: Run) -> InUseError:
    return InUseError(f"run {run.id} is being trained")


def discard_folder(folder: Path, marker: str) -> None:
    """Remove a folder, or the folder that a link points to.

    The folder is renamed and ``marker`` is removed first, so the remains of an interrupted removal are not
    taken for a run or task.

    Args:
        folder: The folder.
        marker: Name of the file that identifies the folder.

    Raises:
        OSError: The folder cannot be renamed or removed.
    """
    folder = folder.resolve()
    renamed = folder.with_name(f"{folder.name}.removed")
    try:
        files.rename(folder, renamed)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        renamed = folder  # on a lower layer of an overlay file system, as in a Docker image
    files.remove(renamed / marker)
    files.remove_tree(renamed)


def remove_run(run: Run) -> None:
    """Remove the folder of a run, and its parent folder if it was the last run of that name.

    Raises:
        InUseError: The run is in use (see :func:`require_unused`).
        OSError: A file cannot be removed; on Windows, because it is open.
    """
    require_unused(run)
    discard_folder(run.path, run.request_file.name)
    with suppress(OSError):
        if os.path.lexists(run.path):  # a link or Windows junction, which is dangling now
            run.path.unlink()
        parent = run.path.parent
        # On Windows, rmdir() would remove a link even if its target is not empty.
        if parent.resolve() == parent.parent.resolve() / parent.name:
            parent.rmdir()
