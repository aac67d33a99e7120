"""The state of a sweep: one SQLite table, a row a task.

::

    queued ──claim──▶ running ──▶ success | failed | pruned
       ▲                 │
       └── stopped, or its worker died

A claim is one conditional UPDATE, so of several drivers exactly one gets a task. A driver holds a lock for as
long as it lives, and marks its rows with the time every few seconds, by which other machines know that it
lives. What a dead one had claimed is queued again.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mmf_win.errors import DataError, ResourceError
from mmf_win.files import remove
from mmf_win.locking import is_locked, locked
from mmf_win.sweeps.folder import SweepFolder
from mmf_win.sweeps.tasks import Task, key_of, told_apart

State = Literal["queued", "running", "success", "failed", "pruned"]
BEAT = 10.0
"""Seconds between two marks of a driver that lives."""

_LAST = 1 << 40  # the position of what is no longer asked for
_DEAD = 180.0  # seconds without a mark, of a driver on another machine
_RUNNING = "WHERE state = 'running'"
_PATIENCE = 30.0  # seconds that another program may keep the file for itself
_TABLE = """
CREATE TABLE IF NOT EXISTS tasks (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,        -- of its folder
    position INTEGER NOT NULL,        -- in the order to run them
    title TEXT,
    parameters TEXT NOT NULL,         -- JSON: what was chosen
    "values" TEXT NOT NULL UNIQUE,    -- JSON: what its commands use
    full_name TEXT NOT NULL,
    commands TEXT NOT NULL,           -- JSON: which to run
    done TEXT NOT NULL DEFAULT '{}',  -- JSON: command → when it ended well, in seconds since the epoch
    began TEXT NOT NULL DEFAULT '{}', -- JSON: command → its words, and the run that it trains
    state TEXT NOT NULL,
    command TEXT,                     -- that runs, or that failed
    message TEXT,                     -- why
    worker TEXT,                      -- the driver that has it
    slot TEXT,
    beat REAL,                        -- when that driver last marked it
    starts INTEGER NOT NULL DEFAULT 0,
    started REAL,
    seconds REAL NOT NULL DEFAULT 0,  -- spent so far
    trial INTEGER                     -- Optuna's number
)"""


@dataclass(frozen=True)
class StoredTask:
    """A task and its state; the attributes are the columns."""

    id: int
    name: str
    position: int
    title: str | None
    parameters: dict[str, Any]
    values: dict[str, Any]
    full_name: str
    commands: list[str]
    done: dict[str, float]
    began: dict[str, dict[str, str]]
    state: State
    command: str | None
    message: str | None
    worker: str | None
    slot: str | None
    beat: float | None
    starts: int
    started: float | None
    seconds: float
    trial: int | None

    @property
    def key(self) -> str:
        """What tells it from other tasks: its values."""
        return key_of(self.values)

    @property
    def left(self) -> list[str]:
        """The commands that have not ended well."""
        return [name for name in self.commands if name not in self.done]


_JSON = ("parameters", "values", "commands", "done", "began")


@dataclass(frozen=True)
class Store:
    """The table of one sweep; threads may share one, since each call opens the file for itself.

    Args:
        folder: the sweep's.
        worker: who claims tasks.
    """

    folder: SweepFolder
    worker: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}")
    _beats: dict[str, tuple[float | None, float]] = field(default_factory=dict, compare=False, repr=False)

    def create(self) -> None:
        """Make the table where there is none.

        Raises:
            DataError: the file cannot be written, or is something else.
        """
        self.folder.path.mkdir(parents=True, exist_ok=True)
        with self._open() as db:
            db.execute(_TABLE)

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Be the driver that claims tasks, until the block ends."""
        self.folder.drivers.mkdir(exist_ok=True)
        lock = self._lock(self.worker)
        try:
            with locked(lock):
                yield
        finally:
            remove(lock)

    def others_live(self) -> bool:
        """Whether another driver works on the sweep, on this machine or, by its marks, on another."""
        locks = self.folder.drivers.glob("*.lock")
        return any(map(is_locked, locks)) or any(not self.is_dead(row) for row in self._rows(_RUNNING))

    def rows(self) -> list[StoredTask]:
        """All tasks in their order; those of a search come last.

        Raises:
            DataError: the file is not the state of a sweep.
        """
        return self._rows()

    def _rows(self, where: str = "") -> list[StoredTask]:
        with self._open(write=False) as db:
            return [_row(row) for row in db.execute(f"SELECT * FROM tasks {where} ORDER BY position, id")]

    def enter(
        self, tasks: Sequence[Task], *, whole: bool = True, force: bool = False, failed: bool = False
    ) -> list[StoredTask]:
        """Queue tasks that have something left to run.

        Args:
            tasks: in the order to run them.
            whole: they are all of the sweep, so what never ran and is none of them is removed, unless another
                driver may be about to run it.
            force: run their commands again from the beginning.
            failed: leave out all but those that failed.

        Returns:
            The rows of these tasks, in their order.
        """
        whole = whole and not self.others_live()
        with self._open() as db:
            before = {row["values"]: _row(row) for row in db.execute("SELECT * FROM tasks")}
            names = {row.name.casefold() for row in before.values()}
            if whole:
                db.execute("UPDATE tasks SET position = ? WHERE trial IS NULL", (_LAST,))
            for position, task in enumerate(tasks):
                known = before.get(task.key)
                if known is None and not failed:
                    _insert(db, _of_its_own(task, names), position)
                elif known is not None and (not failed or known.state == "failed"):
                    gone = not self.folder.task(known.name).path.is_dir()
                    _queue(db, known, task, position, force=force or gone)
            if whole:
                db.execute("DELETE FROM tasks WHERE position = ? AND starts = 0", (_LAST,))
            after = {row["values"]: _row(row) for row in db.execute("SELECT * FROM tasks")}
            found = [after[task.key] for task in tasks if task.key in after]
            return [row for row in found if row.state == "queued"] if failed else found

    def add_trial(self, task: Task, number: int) -> StoredTask:
        """Queue a task that a search has proposed; there must be no other with its values."""
        with self._open() as db:
            names = {row["name"].casefold() for row in db.execute("SELECT name FROM tasks")}
            _insert(db, _of_its_own(task, names), _LAST + 1 + number, number)
            row = db.execute("SELECT * FROM tasks WHERE trial = ?", (number,)).fetchone()
            return _row(row)

    def claim(self, wanted: Collection[int], slot: str) -> StoredTask | None:
        """Take the first queued task of ``wanted``, which no other driver gets; None where none is left."""
        with self._open() as db:
            for (number,) in db.execute("SELECT id FROM tasks WHERE state = 'queued' ORDER BY position, id"):
                if number not in wanted:
                    continue
                now = time.time()
                changed = db.execute(
                    "UPDATE tasks SET state = 'running', worker = ?, slot = ?, beat = ?, started = ?, "
                    "starts = starts + 1, command = NULL, message = NULL WHERE id = ? AND state = 'queued'",
                    (self.worker, slot, now, now, number),
                )
                if changed.rowcount:
                    return _row(db.execute("SELECT * FROM tasks WHERE id = ?", (number,)).fetchone())
        return None

    def beat(self) -> set[int]:
        """Mark this driver's tasks with the time; return which they still are."""
        with self._open() as db:
            mine = "worker = ? AND state = 'running'"
            db.execute(f"UPDATE tasks SET beat = ? WHERE {mine}", (time.time(), self.worker))
            return {row["id"] for row in db.execute(f"SELECT id FROM tasks WHERE {mine}", (self.worker,))}

    def begin(self, row: StoredTask, command: str, script: str | None) -> None:
        """Note that a command runs; ``script`` are its words, or None where it resumes what it left."""
        if script is not None:
            row.began[command] = {"script": script}
        self._update(row, "command = ?, began = ?", command, json.dumps(row.began))

    def trains(self, row: StoredTask, command: str, run: str) -> None:
        """Note which run a command trains, by its folder in the task's."""
        row.began.setdefault(command, {})["run"] = run
        self._update(row, "began = ?", json.dumps(row.began))

    def finish(self, row: StoredTask, command: str) -> None:
        """Note that a command ended well, and is not to run again."""
        row.done[command] = time.time()
        self._update(row, "done = ?", json.dumps(row.done))

    def end(self, row: StoredTask, state: State, message: str | None = None) -> None:
        """Release a task.

        Args:
            row: of this driver.
            state: ``queued`` where it was stopped and is to go on later.
            message: why it failed.
        """
        seconds = row.seconds + time.time() - (row.started or time.time())
        command = "command" if state == "failed" else "NULL"
        change = f"state = ?, message = ?, seconds = ?, command = {command}, worker = NULL, slot = NULL"
        self._update(row, change, state, message, seconds)

    def requeue_dead(self) -> None:
        """Queue the tasks of drivers that died."""
        for row in self._rows(_RUNNING):
            if self.is_dead(row):
                self._update(row, "state = 'queued', worker = NULL, slot = NULL")

    def is_dead(self, row: StoredTask) -> bool:
        """Whether nobody works on a running task any more; what a killed driver left may still be saving.

        Of a driver on another machine, whose clock may be another, it is known after it was silent for long.
        """
        worker = row.worker or ""
        if worker.rsplit("-", 2)[0] != socket.gethostname():
            beat, since = self._beats.get(worker, (None, 0.0))
            if beat != row.beat:
                since = time.monotonic()
                self._beats[worker] = (row.beat, since)
            return time.monotonic() - since > _DEAD
        return not is_locked(self._lock(worker)) and not is_locked(self.folder.task(row.name).lock)

    def _lock(self, worker: str) -> Path:
        return self.folder.drivers / f"{worker}.lock"

    def _update(self, row: StoredTask, change: str, *values: object) -> None:
        with self._open() as db:
            sql = f"UPDATE tasks SET {change} WHERE id = ? AND worker = ? AND state = 'running'"
            db.execute(sql, (*values, row.id, row.worker))

    @contextmanager
    def _open(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        path = self.folder.state
        try:
            with closing(sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)) as db:
                db.row_factory = sqlite3.Row
                db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield db
                db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            if "full" in str(error):
                raise ResourceError(f"{path}: {error}", hint="free some space") from None
            raise DataError(
                f"{path}: {error}", hint="see who may write there, and whether it is a sweep's"
            ) from None


def _insert(db: sqlite3.Connection, task: Task, position: int, trial: int | None = None) -> None:
    values = (
        *(task.name, position, task.title, json.dumps(task.parameters, default=str), task.key),
        *(task.full_name, json.dumps(task.commands), trial),
    )
    db.execute(
        'INSERT INTO tasks (name, position, title, parameters, "values", full_name, commands, trial, state) '
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'queued')",
        values,
    )


def _queue(db: sqlite3.Connection, known: StoredTask, task: Task, position: int, *, force: bool) -> None:
    """Let a row be run again, as far as there is something to run; what runs at this moment is left alone."""
    forgotten = set(task.commands) if force else set()
    done, began = (
        {name: when for name, when in noted.items() if name not in forgotten}
        for noted in (known.done, known.began)
    )
    commands = list(dict.fromkeys([*task.commands, *known.commands]))
    state = known.state
    if state != "pruned" or force:
        state = "queued" if any(name not in done for name in commands) else "success"
    db.execute(
        "UPDATE tasks SET position = ?, title = ?, commands = ?, done = ?, began = ?, state = ? "
        "WHERE id = ? AND state != 'running'",
        (
            *(position, task.title, json.dumps(commands)),
            *(json.dumps(done), json.dumps(began), state, known.id),
        ),
    )


def _of_its_own(task: Task, names: set[str]) -> Task:
    """The task with a name that no other has, whose folder may hold results."""
    if task.name.casefold() in names:
        task = replace(task, name=told_apart(task.name, task.key))
    names.add(task.name.casefold())
    return task


def _row(row: sqlite3.Row) -> StoredTask:
    return StoredTask(**{key: json.loads(row[key]) if key in _JSON else row[key] for key in row.keys()})  # noqa: SIM118
