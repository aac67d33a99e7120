"""Works through the tasks of a sweep: claims them, runs them in slots, and notes how they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol

from mmf_win.protocol import Event
from mmf_win.supervise import stop_requests
from mmf_win.sweeps.job import Ending, Job, Watcher
from mmf_win.sweeps.search import OptunaSearch
from mmf_win.sweeps.slots import Slot
from mmf_win.sweeps.store import BEAT, State, Store, StoredTask

_TICK = 0.2

Execute = Callable[[Job, Slot, Watcher, Callable[[], int]], Ending]
"""Runs a job in a slot to its end; its arguments are those of :func:`mmf_win.sweeps.job.run`."""


class Display(Protocol):
    """Shows how the tasks go on."""

    def begins(self, slot: Slot, row: StoredTask) -> None:
        """A task was claimed."""

    def event(self, slot: Slot, event: Event) -> None:
        """Its training wrote an event."""

    def output(self, slot: Slot, text: str) -> None:
        """Its command printed something."""

    def ends(self, slot: Slot, row: StoredTask, state: State, message: str | None) -> None:
        """It is over, for now where the state is ``queued``."""

    def stopping(self) -> None:
        """The user asked for an end."""


@dataclass
class _Running:
    """A task in a slot."""

    row: StoredTask
    slot: Slot
    future: Future[Ending]
    pruned: bool = False
    lost: bool = False


@dataclass
class Driver:
    """Runs tasks until none is left to claim.

    Attributes:
        store: the state.
        slots: where tasks run, one at a time in each.
        job_of: makes the job of a task.
        execute: runs it.
        display: shows it.
        search: proposes more tasks; None where there is no search.
    """

    store: Store
    slots: Sequence[Slot]
    job_of: Callable[[StoredTask, Slot], Job]
    execute: Execute
    display: Display
    search: OptunaSearch | None = None
    _wanted: set[int] = field(default_factory=set)
    _running: dict[int, _Running] = field(default_factory=dict)
    _news: SimpleQueue[tuple[Slot, Event | str] | None] = field(default_factory=SimpleQueue)
    _ended: bool = False

    def run(self, wanted: Sequence[StoredTask]) -> bool:
        """Run tasks.

        Args:
            wanted: their rows; others are left to other drivers.

        Returns:
            Whether the user stopped it.

        Raises:
            MmfwError: the state cannot be read or written; what runs then saves and leaves first.
        """
        self._wanted = {row.id for row in wanted}
        with self.store.alive(), stop_requests() as stops, ThreadPoolExecutor(len(self.slots)) as pool:
            try:
                next_beat, told_to_stop = 0.0, False
                look = True  # whether there may be something to claim
                while True:
                    if time.monotonic() > next_beat:
                        next_beat, look = time.monotonic() + BEAT, True
                        self._beat()
                    if stops() and not told_to_stop:
                        told_to_stop = True
                        self.display.stopping()
                    if look and not stops():
                        self._fill(pool, stops)
                    if not self._running:
                        return told_to_stop
                    look = self._listen()
            finally:
                self._ended = True  # so what still runs where an error ended this saves and leaves

    def _beat(self) -> None:
        mine = self.store.beat()
        for running in self._running.values():
            running.lost = running.row.id not in mine
        self.store.requeue_dead()

    def _fill(self, pool: ThreadPoolExecutor, stops: Callable[[], int]) -> None:
        """Give each free slot a task, as long as there are some."""
        for slot in self.slots:
            if slot.number in self._running:
                continue
            row = self.store.claim(self._wanted, slot.resource)
            if row is None and self.search is not None and (more := self.search.propose()) is not None:
                self._wanted.add(more.id)
                row = self.store.claim(self._wanted, slot.resource)
            if row is None:
                return
            self.display.begins(slot, row)
            job, watcher = self.job_of(row, slot), _Noting(self.store, row, slot, self._news)
            future = pool.submit(self.execute, job, slot, watcher, self._asked(slot, stops))
            future.add_done_callback(lambda _: self._news.put(None))
            self._running[slot.number] = _Running(row, slot, future)

    def _asked(self, slot: Slot, stops: Callable[[], int]) -> Callable[[], int]:
        """How often the task in a slot was asked to end, by the user or for a reason of its own."""

        def asked() -> int:
            running = self._running.get(slot.number)
            if running is not None and running.lost:
                return 2
            return max(stops(), self._ended or (running is not None and running.pruned))

        return asked

    def _listen(self) -> bool:
        """Wait a moment for news; return whether a slot has become free."""
        with suppress(Empty):
            news = self._news.get(timeout=_TICK)
            # What a task told before its end has come by then.
            ended = [running for running in self._running.values() if running.future.done()]
            while True:
                if news is not None:
                    self._show(*news)
                if self._news.empty():
                    break
                news = self._news.get()
            for running in ended:
                del self._running[running.slot.number]
                self._end(running)
            return bool(ended)
        return False

    def _show(self, slot: Slot, news: Event | str) -> None:
        if isinstance(news, str):
            self.display.output(slot, news)
            return
        self.display.event(slot, news)
        running = self._running.get(slot.number)
        if running is not None and self.search is not None and not running.pruned:
            running.pruned = self.search.is_hopeless(running.row, news)

    def _end(self, running: _Running) -> None:
        try:
            ending = running.future.result()
        except Exception as error:  # of one task; the others go on
            ending = Ending("failed", f"{type(error).__name__}: {error}")
        if ending.state != "stopped":
            state: State = ending.state
        else:
            state = "pruned" if running.pruned else "queued"
        if not running.lost:
            others = state == "success" and running.row.left  # commands that this driver was not to run
            if others:
                self._wanted.discard(running.row.id)
            self.store.end(running.row, "queued" if others else state, ending.message)
            if self.search is not None and state != "queued":
                self.search.tell(running.row, state)
        self.display.ends(running.slot, running.row, state, ending.message)


class _Noting(Watcher):
    """Notes in the state what a task does, and hands on the rest."""

    def __init__(
        self, store: Store, row: StoredTask, slot: Slot, news: SimpleQueue[tuple[Slot, Event | str] | None]
    ) -> None:
        self._store, self._row, self._slot, self._news = store, row, slot, news

    def begins(self, command: str, script: str | None) -> None:
        self._store.begin(self._row, command, script)

    def trains(self, command: str, run: str) -> None:
        self._store.trains(self._row, command, run)

    def finished(self, command: str) -> None:
        self._store.finish(self._row, command)

    def event(self, event: Event) -> None:
        self._news.put((self._slot, event))

    def output(self, text: str) -> None:
        self._news.put((self._slot, text))
