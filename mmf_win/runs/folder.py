"""A run on disk.

::

    <save dir>/<name>/<YYYY-mm-ddTHH-MM-SS>/
      request.json      what was asked for
      events.jsonl      what happened in training
      log.txt           the whole output of the workers that trained
      events.out.tfevents.*    curves for TensorBoard
      attempts/<n>/     each attempt's request, MMF configuration and exit.json, the one record of how it
                        ended; a prediction's events.jsonl, log.txt and logs/
      lock              held while it is being trained
      readers           a share of it is held while a prediction reads its checkpoints
      logs/             MMF's own logs
      checkpoints/      MMF's own folder: best.ckpt, current.ckpt, models/, *_final.pth, config.yaml
      pins/             second names of checkpoints while they predict
      reports/          predictions, their metrics and pages
      tracking/         what MLflow, ClearML or W&B have of it
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import count
from pathlib import Path
from typing import Any, TypedDict

from mmf_win import files
from mmf_win.console import format_command
from mmf_win.errors import DataError, InUseError
from mmf_win.files import write_json
from mmf_win.locking import file_lock, is_locked
from mmf_win.paths import (
    ChildPath,
    create_first_free,
    create_timestamped_dir,
    reserve_file,
    short_portable_name,
)
from mmf_win.protocol import MAX_TIMESTAMP, AttemptFolder
from mmf_win.protocol.attempt import EVENTS, LOG
from mmf_win.records import convert_to, decode_json, read_record
from mmf_win.runs.request import RunRequest, drop_start_settings

#: Where sweeps lie in the save dir, each a folder with one for every task, in which its runs lie.
SWEEPS_DIR = "sweeps"
#: The file that makes a folder that of a sweep, and those that make one that of a task.
SPECIFICATION_FILE, PARAMETERS_FILE, TASK_RECORD_FILE = "sweep.yaml", "param", "task.json"
_PIN_CLEANUP_SECONDS = 2.0  # seconds in which another command removes pins that a killed one has left


class _CreationRecord(TypedDict):
    created: float


@dataclass(frozen=True)
class Run:
    """The folder of one run, and the names in it."""

    path: Path

    #: What was asked for; a folder without it is no run.
    request_file = ChildPath("request.json")
    #: Events of all attempts to train.
    events = ChildPath(EVENTS)
    #: Held while the run is being trained.
    training_lock_file = ChildPath("lock")
    #: The whole output of the workers that trained.
    log = ChildPath(LOG)
    #: How the last training ended, in runs that an earlier version trained last.
    legacy_outcome_file = ChildPath("exit.json")
    #: The lock of those who read its checkpoints.
    usage_lock_file = ChildPath("readers")
    #: MMF's own logs.
    logs = ChildPath("logs")
    #: MMF's save_dir.
    checkpoints = ChildPath("checkpoints")
    #: Second names of checkpoints that predict at this moment, see :mod:`mmf_win.runs.checkpoints`.
    pins = ChildPath("pins")
    #: Predictions, their metrics and pages.
    reports = ChildPath("reports")
    #: What trackers have of it.
    tracking = ChildPath("tracking")

    @classmethod
    def create(cls, save_dir: Path, name: str) -> Run:
        """A new, empty run folder."""
        return cls(create_timestamped_dir(save_dir / short_portable_name(name)))

    @property
    def id(self) -> str:
        """``<name>/<time>``, or that of its task for the only run of one; every command understands it."""
        short_id, task = "/".join(self.path.parts[-2:]), self.path.parent.parent
        if not is_task_folder(task):
            return short_id
        return f"{task_id(task)}/{short_id}" if len([*task.glob("*/*/request.json")]) > 1 else task_id(task)

    def _repr_html_(self) -> str:
        """Its newest page, for notebooks: without access to these, since it holds texts of memes."""
        pages = sorted(self.reports.glob("*.html"), key=lambda page: page.stat().st_mtime)
        if not pages:
            report = escape(format_command("mmfw", "report", self.path))
            return f"<p>Run {escape(self.id)} has no page so far; <code>{report}</code> makes one.</p>"
        page = escape(pages[-1].read_text(encoding="utf-8", errors="replace"))
        return f'<iframe sandbox="allow-scripts" srcdoc="{page}" width="100%" height="800"></iframe>'

    def reserve_prediction_file(self, split: str, folder: Path | None = None) -> AbstractContextManager[Path]:
        """The name of a new prediction file for ``split``, which the block makes; by default in the run."""
        return reserve_file(folder or self.reports, f"hateful_memes_{self.path.parent.name}_{split}_", ".csv")

    def create_attempt(self) -> AttemptFolder:
        """A new folder under ``attempts``, numbered on from the last."""
        attempts = self.path / "attempts"
        attempts.mkdir(exist_ok=True)
        numbers = count(max(self._attempt_numbers(), default=0) + 1)
        return AttemptFolder(create_first_free((attempts / str(number) for number in numbers), Path.mkdir))

    def attempt(self, name: int | str) -> AttemptFolder:
        """Return the folder of an attempt, by its number or its name in events."""
        return AttemptFolder(self.path / "attempts" / str(name))

    def _attempt_numbers(self) -> list[int]:
        """Return the numbers of the attempts, the newest first."""
        numbers: list[int] = []
        with suppress(FileNotFoundError, NotADirectoryError):
            names = (entry.name for entry in (self.path / "attempts").iterdir())
            numbers = sorted((int(name) for name in names if name.isdecimal()), reverse=True)
        return numbers

    @property
    def outcome_file(self) -> Path:
        """The record of how the last training ended, in the folder of its attempt.

        It is absent while the training runs, and if mmfw was killed with it. The file of an earlier version
        is the record until the next training removes it. Raises OSError if the attempts cannot be listed.
        """
        if self.legacy_outcome_file.exists():
            return self.legacy_outcome_file
        trainings = (folder for folder in map(self.attempt, self._attempt_numbers()) if folder.is_training())
        return next((folder.outcome_file for folder in trainings), self.legacy_outcome_file)

    def save_request(self, request: RunRequest) -> None:
        """Remember what was asked for, but for what holds for the start alone."""
        write_json(
            self.request_file, asdict(replace(request, settings=drop_start_settings(request.settings)))
        )

    def creation_time(self) -> tuple[float, bool] | None:
        """Return when the run was asked for, in seconds since the epoch, and whether its request says so.

        If not, that is when the file was written last. None if the folder is no run. Times in names of
        folders are for people: they are local, and names may be changed.
        """
        file = os.path.join(self.path, "request.json")  # noqa: PTH118 - there are thousands of runs
        try:
            info = os.stat(file)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:  # whoever reads the run is told why it cannot be
            return 0.0, False
        with suppress(OSError, ValueError, LookupError):
            if stat.S_ISREG(info.st_mode):
                with open(file, "rb") as stream:  # noqa: PTH123
                    created = decode_json(stream.read(), _CreationRecord)["created"]
                if 0 <= created < MAX_TIMESTAMP:
                    return created, True
        return info.st_mtime, False

    def request(self) -> RunRequest:
        """What was asked for. Raises DataError where that cannot be read."""
        try:
            values = read_record(self.request_file, dict[str, Any])
            request = convert_to({"created": self.request_file.stat().st_mtime, **values}, RunRequest)
            request.mmfw_settings  # noqa: B018 - refuses what is of another type
            if "overrides" in values:
                raise ValueError("its overrides are not among its settings, so it is not of this version")
            if not request.model:
                raise ValueError("it names no model")
            if missing := {"train", "val", "test"} - request.splits.keys():
                raise ValueError(f"it names no split for {min(missing)}")
            if not 0 <= request.created < MAX_TIMESTAMP:
                raise ValueError(f"created cannot be {request.created}")
            return request
        except (OSError, ValueError) as error:
            message = f"{self.request_file}: not the request of a run ({error})"
            hint = f"`{format_command('mmfw', 'runs', 'rm', self.path)}` removes this run"
            saved = (self.checkpoints / f"{name}.ckpt" for name in ("best", "current"))
            if weights := next(filter(Path.is_file, saved), None):
                train_command = format_command("mmfw", "train", "PRESET", "--init", weights)
                hint = f"`{train_command}` begins anew with its weights, and {hint}"
            raise DataError(message, hint=hint) from None


def is_task_folder(folder: Path) -> bool:
    """Whether a folder is that of a task, which may have lost one of its files."""
    return (folder / PARAMETERS_FILE).is_file() or (folder / TASK_RECORD_FILE).is_file()


def task_id(folder: Path) -> str:
    """``sweeps/<sweep>/<task>``, or the folder of a task elsewhere: for every command its newest run."""
    return "/".join(folder.parts[-3:]) if folder.parts[-3:-2] == (SWEEPS_DIR,) else str(folder)


def require_not_training(run: Run) -> None:
    """Raise InUseError where some process trains the run."""
    if is_locked(run.training_lock_file):
        raise _in_training_error(run)


def training_lock(run: Run) -> AbstractContextManager[int]:
    """Hold the run's lock: its descriptor is for the worker, which keeps it when this process is killed.

    The block raises InUseError where another process trains the run.
    """
    return file_lock(run.training_lock_file, in_use_error=_in_training_error(run))


def require_unused(run: Run) -> None:
    """Raise InUseError where some process trains the run, predicts with it or sends it to a tracker."""
    require_not_training(run)
    error = InUseError(f"run {run.id} is predicting, or is being sent to a tracker")
    with file_lock(run.usage_lock_file, in_use_error=error):
        pass


def usage_lock(run: Run) -> AbstractContextManager[int]:
    """Keep the run from being removed meanwhile. The block raises InUseError where that has begun."""
    error = InUseError(f"run {run.id} is being removed")
    return file_lock(run.usage_lock_file, _PIN_CLEANUP_SECONDS, shared=True, in_use_error=error)


def _in_training_error(run: Run) -> InUseError:
    return InUseError(f"run {run.id} is being trained")


def discard_folder(folder: Path, marker: str) -> None:
    """Remove a folder, or what a link leads to. What an interruption leaves lacks its name and ``marker``."""
    folder = folder.resolve()
    renamed = folder.with_name(f"{folder.name}.removed")
    try:
        files.rename(folder, renamed)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        renamed = folder  # of a lower layer of an overlay file system, as in a Docker image
    files.remove(renamed / marker)
    files.remove_tree(renamed)


def remove_run(run: Run) -> None:
    """Remove the run's folder, and its name's where that was the last run of the name.

    Raises as :func:`require_unused`, or an OSError: Windows refuses it for files that are open.
    """
    require_unused(run)
    discard_folder(run.path, run.request_file.name)
    with suppress(OSError):
        if os.path.lexists(run.path):  # a link, or a junction of Windows, which now leads nowhere
            run.path.unlink()
        parent = run.path.parent
        # Windows would remove a link to it even if it is not empty.
        if parent.resolve() == parent.parent.resolve() / parent.name:
            parent.rmdir()
