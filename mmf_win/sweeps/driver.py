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
from mmf_win.sweeps.search import OptunaSearch
from mmf_win.sweeps.task_runner import OnUpdate, Slot, TaskSignals, TaskUpdate

_log = logging.getLogger(__name__)

_BUSY_POLL_SECONDS, _IDLE_POLL_SECONDS = 0.2, 1.0
#: The seconds between two looks at the tasks of other drivers.
RESCAN_SECONDS = 10.0
_STOP_MESSAGE = "\nthe running tasks save and exit, the others stay queued; press Ctrl+C again to end at once"


@dataclass
class _RunningTask:
    """A task in a slot; another driver may turn out to have it."""

    task: Task
    has_started: bool = False
    is_pruned: bool = False


@dataclass
class Driver:
    """Runs tasks until all have ended; those of another driver, which may die, are waited for.

    Attributes:
        slots: where they run, one at a time in each.
        execute: runs one to its end, as :meth:`mmf_win.sweeps.task_runner.TaskRunner.run` does.
        show: shows what is told of the task in a slot, and the task once more as it ends.
        search: proposes more tasks; None where there is no search.
        tasks: all that were asked of it, by their keys, as they are.
    """

    sweep: SweepFolder
    slots: Sequence[Slot]
    execute: Callable[[Task, Slot, OnUpdate, Callable[[], TaskSignals]], Task]
    show_update: Callable[[Slot, TaskUpdate], None]
    search: OptunaSearch | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    _waiting_tasks: list[Task] = field(default_factory=list)
    _running_tasks: dict[int, _RunningTask] = field(default_factory=dict)
    _updates: SimpleQueue[tuple[Slot, TaskUpdate | Future[Task]]] = field(default_factory=SimpleQueue)
    _has_ended: bool = False

    def run(self, tasks: Sequence[Task]) -> bool:
        """Run tasks, in this order; return whether the user stopped it."""
        self._waiting_tasks += tasks
        self.tasks |= {task.key: task for task in tasks}
        with count_stop_requests() as stops, ThreadPoolExecutor(len(self.slots)) as pool:
            try:
                next_look, told_to_stop, waiting = 0.0, False, False
                look = True  # whether there may be something to run
                while True:
                    if time.monotonic() > next_look or not self._running_tasks:
                        next_look, look = time.monotonic() + RESCAN_SECONDS, True
                    if stops() and not told_to_stop:
                        told_to_stop = True
                        _log.info(_STOP_MESSAGE)
                    if look and not stops():
                        self._fill_slots(pool, stops)
                    if not self._running_tasks and (told_to_stop or not self._has_foreign_tasks()):
                        return told_to_stop
                    if not self._running_tasks and not waiting:
                        waiting = True
                        _log.info("waiting for %d tasks that another driver runs", len(self._waiting_tasks))
                    look = self._handle_next_update()
            finally:
                self._has_ended = True  # so what still runs where an error ended this saves and leaves

    def _fill_slots(self, pool: ThreadPoolExecutor, count_stops: Callable[[], int]) -> None:
        """Give each free slot a task, as long as there are some."""
        for slot in self.slots:
            if slot.number in self._running_tasks:
                continue
            task = self._next_task()
            if task is None:
                return
            running = self._running_tasks[slot.number] = _RunningTask(task)
            tell = partial(self._put_update, slot)
            future = pool.submit(
                self.execute, task, slot, tell, partial(self._task_signals, running, count_stops)
            )
            future.add_done_callback(tell)  # after all that the task has told

    def _next_task(self) -> Task | None:
        """The next task that nobody runs at this moment; others may die, so theirs keep waiting."""
        for task in self._waiting_tasks:
            with suppress(OSError):  # why, is found out when it is to run
                if is_locked(self.sweep.task_folder(task.name).lock):
                    self.tasks[task.key] = replace(task, state="running")
                    continue
            self._waiting_tasks.remove(task)
            return task
        proposed = None if self.search is None else self.search.propose_task()
        if proposed is not None:
            self.tasks[proposed.key] = proposed
        return proposed

    def _has_foreign_tasks(self) -> bool:
        """Whether tasks are left that other drivers have, or had when they died, as those of a search."""
        for task in [] if self._waiting_tasks or self.search is None else self.search.list_unstarted_tasks():
            self._defer_task(task)
        return bool(self._waiting_tasks)

    def _defer_task(self, task: Task) -> None:
        """Leave a task to whoever runs it, and look again later: he may die."""
        self._waiting_tasks.append(task)
        self.tasks[task.key] = replace(task, state="running")

    def _put_update(self, slot: Slot, update: TaskUpdate | Future[Task]) -> None:
        self._updates.put((slot, update))

    def _task_signals(self, running: _RunningTask, count_stops: Callable[[], int]) -> TaskSignals:
        """What is asked of a task, by the user or for a reason of its own."""
        return TaskSignals(max(count_stops(), self._has_ended or running.is_pruned), running.is_pruned)

    def _handle_next_update(self) -> bool:
        """Wait a moment for news; return whether a slot has become free."""
        try:
            slot, news = self._updates.get(
                timeout=_BUSY_POLL_SECONDS if self._running_tasks else _IDLE_POLL_SECONDS
            )
        except Empty:
            return False
        if isinstance(news, Future):
            self._finish_task(slot, self._running_tasks.pop(slot.number), news)
            return True
        running = self._running_tasks[slot.number]
        running.has_started = True
        self.show_update(slot, news)
        if isinstance(news, dict) and self.search is not None and not running.is_pruned:
            running.is_pruned = self.search.should_prune(running.task, news)
        return False

    def _finish_task(self, slot: Slot, running: _RunningTask, future: Future[Task]) -> None:
        try:
            task = future.result()
        except Exception as error:  # of one task; the others go on
            if isinstance(error, OSError) and error.errno == errno.ENOLCK:  # of the folder: none could run
                raise
            task = replace(running.task, state="failed", message=f"{type(error).__name__}: {error}")
        if task.state == "running":
            self._defer_task(running.task)
            return
        self.tasks[task.key] = task
        if self.search is not None and task.state != "queued":
            self.search.record_outcome(task)
        if running.has_started or task.state == "failed":
            self.show_update(slot, task)
