"""Works through the tasks of a sweep in slots, beside other drivers that may do the same."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue

from mmf_win.locking import is_locked
from mmf_win.supervise import count_stop_requests
from mmf_win.sweeps.folder import SweepFolder, Task
from mmf_win.sweeps.running import Asked, News, Slot, Tell
from mmf_win.sweeps.search import OptunaSearch

_log = logging.getLogger(__name__)

_TICK, _IDLE = 0.2, 1.0
#: The seconds between two looks at the tasks of other drivers.
BETWEEN_LOOKS = 10.0
_STOPPING = "\nthe running tasks save and exit, the others stay queued; press Ctrl+C again to end at once"


@dataclass
class _Running:
    """A task in a slot; another driver may turn out to have it."""

    task: Task
    begun: bool = False
    pruned: bool = False


@dataclass
class Driver:
    """Runs tasks until all have ended; those of another driver, which may die, are waited for.

    Attributes:
        slots: where they run, one at a time in each.
        execute: runs one to its end, as :meth:`mmf_win.sweeps.running.Runner.run` does.
        show: shows what is told of the task in a slot, and the task once more as it ends.
        search: proposes more tasks; None where there is no search.
        tasks: all that were asked of it, by their keys, as they are.
    """

    sweep: SweepFolder
    slots: Sequence[Slot]
    execute: Callable[[Task, Slot, Tell, Callable[[], Asked]], Task]
    show: Callable[[Slot, News], None]
    search: OptunaSearch | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    _waiting: list[Task] = field(default_factory=list)
    _running: dict[int, _Running] = field(default_factory=dict)
    _news: SimpleQueue[tuple[Slot, News | Future[Task]]] = field(default_factory=SimpleQueue)
    _ended: bool = False

    def run(self, wanted: Sequence[Task]) -> bool:
        """Run tasks, in this order; return whether the user stopped it."""
        self._waiting += wanted
        self.tasks |= {task.key: task for task in wanted}
        with count_stop_requests() as stops, ThreadPoolExecutor(len(self.slots)) as pool:
            try:
                next_look, told_to_stop, waiting = 0.0, False, False
                look = True  # whether there may be something to run
                while True:
                    if time.monotonic() > next_look or not self._running:
                        next_look, look = time.monotonic() + BETWEEN_LOOKS, True
                    if stops() and not told_to_stop:
                        told_to_stop = True
                        _log.info(_STOPPING)
                    if look and not stops():
                        self._fill(pool, stops)
                    if not self._running and (told_to_stop or not self._others_have()):
                        return told_to_stop
                    if not self._running and not waiting:
                        waiting = True
                        _log.info("waiting for %d tasks that another driver runs", len(self._waiting))
                    look = self._listen()
            finally:
                self._ended = True  # so what still runs where an error ended this saves and leaves

    def _fill(self, pool: ThreadPoolExecutor, stops: Callable[[], int]) -> None:
        """Give each free slot a task, as long as there are some."""
        for slot in self.slots:
            if slot.number in self._running:
                continue
            task = self._next()
            if task is None:
                return
            running = self._running[slot.number] = _Running(task)
            tell = partial(self._tell, slot)
            future = pool.submit(self.execute, task, slot, tell, partial(self._asked, running, stops))
            future.add_done_callback(tell)  # after all that the task has told

    def _next(self) -> Task | None:
        """The next task that nobody runs at this moment; others may die, so theirs keep waiting."""
        for task in self._waiting:
            with suppress(OSError):  # why, is found out when it is to run
                if is_locked(self.sweep.task(task.name).lock):
                    self.tasks[task.key] = replace(task, state="running")
                    continue
            self._waiting.remove(task)
            return task
        proposed = None if self.search is None else self.search.propose()
        if proposed is not None:
            self.tasks[proposed.key] = proposed
        return proposed

    def _others_have(self) -> bool:
        """Whether tasks are left that other drivers have, or had when they died, as those of a search."""
        for task in [] if self._waiting or self.search is None else self.search.unbegun():
            self._set_aside(task)
        return bool(self._waiting)

    def _set_aside(self, task: Task) -> None:
        """Leave a task to whoever runs it, and look again later: he may die."""
        self._waiting.append(task)
        self.tasks[task.key] = replace(task, state="running")

    def _tell(self, slot: Slot, news: News | Future[Task]) -> None:
        self._news.put((slot, news))

    def _asked(self, running: _Running, stops: Callable[[], int]) -> Asked:
        """What is asked of a task, by the user or for a reason of its own."""
        return Asked(max(stops(), self._ended or running.pruned), running.pruned)

    def _listen(self) -> bool:
        """Wait a moment for news; return whether a slot has become free."""
        try:
            slot, news = self._news.get(timeout=_TICK if self._running else _IDLE)
        except Empty:
            return False
        if isinstance(news, Future):
            self._end(slot, self._running.pop(slot.number), news)
            return True
        running = self._running[slot.number]
        running.begun = True
        self.show(slot, news)
        if isinstance(news, dict) and self.search is not None and not running.pruned:
            running.pruned = self.search.is_hopeless(running.task, news)
        return False

    def _end(self, slot: Slot, running: _Running, future: Future[Task]) -> None:
        try:
            task = future.result()
        except Exception as error:  # of one task; the others go on
            if isinstance(error, OSError) and error.errno == errno.ENOLCK:  # of the folder: none could run
                raise
            task = replace(running.task, state="failed", message=f"{type(error).__name__}: {error}")
        if task.state == "running":
            self._set_aside(running.task)
            return
        self.tasks[task.key] = task
        if self.search is not None and task.state != "queued":
            self.search.tell(task)
        if running.begun or task.state == "failed":
            self.show(slot, task)
