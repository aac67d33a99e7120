"""Driver that runs the tasks of a sweep in slots; several drivers can work on the same sweep."""

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
#: Seconds between two checks of the tasks of other drivers.
RESCAN_SECONDS = 10.0
_STOP_MESSAGE = "\nrunning tasks save and exit, the others stay queued; press Ctrl+C again to end at once"


@dataclass
class _RunningTask:
    """Task that was handed to a slot.

    Attributes:
        has_started: The task has sent an update; if it never does, another driver may hold it.
        is_pruned: The search has decided to stop the task.
    """

    task: Task
    has_started: bool = False
    is_pruned: bool = False


@dataclass
class Driver:
    """Driver of a sweep; it ends when all tasks have ended, including those of other drivers, which may die.

    Attributes:
        sweep: Folder of the sweep.
        slots: Slots of this driver; each runs one task at a time.
        execute: Runs one task to its end, like :meth:`mmf_win.sweeps.task_runner.TaskRunner.run`.
        show_update: Shows an update of the task in a slot, and the task itself when it ends.
        search: Source of further tasks; ``None`` without a search.
        tasks: Current state of all requested tasks, by key.
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
        """Run tasks in the given order and return whether the user stopped them."""
        self._waiting_tasks += tasks
        self.tasks |= {task.key: task for task in tasks}
        with count_stop_requests() as count_stops, ThreadPoolExecutor(len(self.slots)) as pool:
            try:
                next_rescan, is_stopping, is_idle_logged = 0.0, False, False
                may_have_task = True
                while True:
                    if time.monotonic() > next_rescan or not self._running_tasks:
                        next_rescan, may_have_task = time.monotonic() + RESCAN_SECONDS, True
                    if count_stops() and not is_stopping:
                        is_stopping = True
                        _log.info(_STOP_MESSAGE)
                    if may_have_task and not count_stops():
                        self._fill_slots(pool, count_stops)
                    if not self._running_tasks and (is_stopping or not self._has_foreign_tasks()):
                        return is_stopping
                    if not self._running_tasks and not is_idle_logged:
                        is_idle_logged = True
                        _log.info("waiting for %d tasks of another driver", len(self._waiting_tasks))
                    may_have_task = self._handle_next_update()
            finally:
                self._has_ended = True  # after an error, running tasks save and exit

    def _fill_slots(self, pool: ThreadPoolExecutor, count_stops: Callable[[], int]) -> None:
        """Start the next tasks in the free slots."""
        for slot in self.slots:
            if slot.number in self._running_tasks:
                continue
            task = self._next_task()
            if task is None:
                return
            running = self._running_tasks[slot.number] = _RunningTask(task)
            on_update = partial(self._put_update, slot)
            future = pool.submit(self.execute, task, slot, on_update, partial(self._task_signals, running, count_stops))
            future.add_done_callback(on_update)  # queued after the task's own updates

    def _next_task(self) -> Task | None:
        """Return the next task that no other driver runs, or ``None``.

        A task of another driver stays in the queue, because that driver may die.
        """
        for task in self._waiting_tasks:
            with suppress(OSError):  # an unreadable lock is reported when the task runs
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
        """Return whether tasks of other drivers remain, after queueing the unstarted trials of a search."""
        for task in [] if self._waiting_tasks or self.search is None else self.search.list_unstarted_tasks():
            self._defer_task(task)
        return bool(self._waiting_tasks)

    def _defer_task(self, task: Task) -> None:
        """Queue a task that another driver runs, to check it again later."""
        self._waiting_tasks.append(task)
        self.tasks[task.key] = replace(task, state="running")

    def _put_update(self, slot: Slot, update: TaskUpdate | Future[Task]) -> None:
        self._updates.put((slot, update))

    def _task_signals(self, running: _RunningTask, count_stops: Callable[[], int]) -> TaskSignals:
        """Return the stop requests for a running task, and whether it is pruned."""
        return TaskSignals(max(count_stops(), self._has_ended or running.is_pruned), running.is_pruned)

    def _handle_next_update(self) -> bool:
        """Wait briefly for an update and handle it; return whether a slot became free."""
        try:
            slot, update = self._updates.get(timeout=_BUSY_POLL_SECONDS if self._running_tasks else _IDLE_POLL_SECONDS)
        except Empty:
            return False
        if isinstance(update, Future):
            self._finish_task(slot, self._running_tasks.pop(slot.number), update)
            return True
        running = self._running_tasks[slot.number]
        running.has_started = True
        self.show_update(slot, update)
        if isinstance(update, dict) and self.search is not None and not running.is_pruned:
            running.is_pruned = self.search.should_prune(running.task, update)
        return False

    def _finish_task(self, slot: Slot, running: _RunningTask, future: Future[Task]) -> None:
        try:
            task = future.result()
        except Exception as error:  # only this task fails
            if isinstance(error, OSError) and error.errno == errno.ENOLCK:  # no task can run without locks
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
