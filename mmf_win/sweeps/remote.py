"""Runs one task for a driver on another machine, which asks from time to time how it goes on."""

from __future__ import annotations

import os
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition, Thread
from typing import Any

from mmf_win import __version__
from mmf_win.protocol import Event
from mmf_win.sweeps import job
from mmf_win.sweeps.folder import TaskFolder

Note = tuple[str, tuple[Any, ...]]
"""A method of a watcher, and its arguments."""

_WAIT = 0.5  # seconds for which the driver is kept waiting when there is no news
_PIECE = 16 << 20  # bytes


def version() -> str:
    """The version of mmfw that this machine has."""
    return __version__


class Runner(job.Watcher):
    """A task on the machine that runs it. The driver calls all but what a watcher has."""

    def __init__(self) -> None:
        self._change = Condition()
        self._notes: list[Note] = []
        self._forgotten = 0  # notes that the driver has
        self._stops = 0
        self._result: Future[job.Ending] | None = None
        self._temporary: TemporaryDirectory[str] | None = None
        self._folder = TaskFolder(Path())

    def sees(self, sight: str) -> bool:
        """Whether this machine sees a folder that the driver has just made."""
        return Path(sight).is_dir()

    def take(self, task: job.Job, *, shared: bool) -> None:
        """Get ready to run a task, in a temporary folder unless the sweep's is ``shared``."""
        if not shared:
            self._temporary = TemporaryDirectory(prefix="mmfw-", ignore_cleanup_errors=True)
            task = replace(task, output=str(Path(self._temporary.name).resolve()))
        self._task, self._folder = task, task.folder

    def start(self, resume: job.Resume, directory: str) -> None:
        """Run it, in the driver's current directory where this machine has it."""
        if Path(directory).is_dir():
            os.chdir(directory)
        self._result = Future()
        self._result.add_done_callback(lambda _: self._tell(None))
        # Not one of a pool, which Python would wait for: when this process is to end, so is the task.
        Thread(target=self._run, args=(self._result, resume), daemon=True).start()

    def news(self, known: int, stops: int) -> tuple[list[Note], job.Ending | None]:
        """What happened since the first ``known`` notes, and how the task ended if it did.

        Args:
            known: how many the driver has heard of.
            stops: how often an end was asked for so far.

        Raises:
            Exception: what :func:`mmf_win.sweeps.job.run` has raised.
        """
        assert self._result is not None
        with self._change:
            self._stops = stops
            del self._notes[: known - self._forgotten]
            self._forgotten = known
            self._change.notify_all()
            self._change.wait_for(lambda: self._notes or (self._result and self._result.done()), _WAIT)
            ended = self._result.done()
            return list(self._notes), self._result.result() if ended else None

    def files(self, *, resumable: bool) -> list[str]:
        """The files of the task, as :func:`files` lists them."""
        return files(self._folder, resumable=resumable)

    def read(self, name: str, offset: int) -> bytes:
        """A piece of one of its files, empty at the end."""
        return read(self._folder.path / name, offset)

    def write(self, name: str, piece: bytes) -> None:
        """Add a piece to one of its files."""
        file = self._folder.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as out:
            out.write(piece)

    def leave(self) -> None:
        """Remove the temporary folder."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def begins(self, command: str, script: str | None) -> None:
        """Note it, and wait until the driver has: it looks later for a training begun since it knew."""
        with self._change:
            number = self._tell(("begins", (command, script)))
            self._change.wait_for(lambda: self._forgotten >= number)

    def trains(self, command: str, run: str) -> None:
        """Note it."""
        self._tell(("trains", (command, run)))

    def finished(self, command: str) -> None:
        """Note it."""
        self._tell(("finished", (command,)))

    def event(self, event: Event) -> None:
        """Note it."""
        self._tell(("event", (event,)))

    def output(self, text: str) -> None:
        """Note it."""
        self._tell(("output", (text,)))

    def _run(self, result: Future[job.Ending], resume: job.Resume) -> None:
        try:
            result.set_result(job.run(self._task, resume, self, lambda: self._stops))
        except BaseException as error:
            result.set_exception(error)

    def _tell(self, note: Note | None) -> int:
        """Note what happened; return how many notes there have been."""
        with self._change:
            self._notes += [note] if note is not None else []
            self._change.notify_all()
            return self._forgotten + len(self._notes)


def files(folder: TaskFolder, *, resumable: bool) -> list[str]:
    """The files of a task that are worth sending, by their names in its folder.

    Args:
        folder: the task's.
        resumable: also MMF's ``current.ckpt``, which serves only to resume. The older checkpoints never are.
    """
    skipped = {
        folder.lock,
        folder.stop,
        *(() if resumable else folder.path.rglob("checkpoints/current.ckpt")),
    }
    found = [file for file in folder.path.rglob("*") if file.is_file() and file not in skipped]
    return sorted(
        file.relative_to(folder.path).as_posix()
        for file in found
        if file.parent.parts[-2:] != ("checkpoints", "models")
    )


def read(file: Path, offset: int) -> bytes:
    """A piece of a file, empty at its end."""
    with file.open("rb") as content:
        content.seek(offset)
        return content.read(_PIECE)
