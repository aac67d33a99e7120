"""Display of a running sweep: one bar per slot on a terminal, otherwise one line per task."""

from __future__ import annotations

import time

from mmf_win.commands.progress import EventBar
from mmf_win.console import Progress, format_duration, print_status
from mmf_win.protocol import Event
from mmf_win.runs.scores import val_auroc
from mmf_win.sweeps.folder import Task
from mmf_win.sweeps.task_runner import Slot, TaskUpdate


class SweepDisplay:
    """Display of a driver's updates about ``total`` tasks; see :class:`mmf_win.sweeps.driver.Driver`."""

    def __init__(self, total: int) -> None:
        self._total_progress = Progress("all tasks", total, "task")
        self._slot_displays: dict[int, _SlotDisplay] = {}

    def __enter__(self) -> SweepDisplay:
        self._total_progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for display in self._slot_displays.values():
            display.close()
        self._total_progress.__exit__()

    def __call__(self, slot: Slot, update: TaskUpdate) -> None:
        """Show an update of the task in a slot."""
        if isinstance(update, Task):
            if update.state == "running":
                self._slot_displays[slot.number] = _SlotDisplay(f"{slot.resource}: {update.name}")
                print_status(f"started on {slot.resource}: {update.name}")
            else:
                self._finish_task(self._slot_displays.pop(slot.number, _SlotDisplay("")), update)
        elif isinstance(update, str):
            print_status(update.rstrip("\n"))
        else:
            self._slot_displays[slot.number].show(update)

    def _finish_task(self, display: _SlotDisplay, task: Task) -> None:
        display.close()
        score = f", best AUROC {display.best_auroc:.4f}" if display.best_auroc is not None else ""
        detail = f": {task.message}" if task.message else score
        state = "stopped, can be resumed" if task.state == "queued" else task.state
        print_status(f"{state}: {task.name}, {format_duration(time.monotonic() - display.start_time)}{detail}")
        if task.state != "queued":
            self._total_progress.advance(1)


class _SlotDisplay(EventBar):
    """Display of the task in one slot."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.best_auroc: float | None = None
        self.start_time = time.monotonic()
        self._title = title

    def show(self, event: Event) -> None:
        """Show an event of a training."""
        kind = event["kind"]
        if kind == "train_started":
            self.start(self._title, event["max_updates"], "update", event["update"], leave=False)
        elif kind == "train" and event["loss"] is not None:
            self.figures["loss"] = f"{event['loss']:.4f}"
        elif (auroc := val_auroc(event)) is not None:
            self.best_auroc = max(auroc, self.best_auroc or 0.0)
            self.figures["AUROC"] = f"{self.best_auroc:.4f}"
        if kind in ("train", "val") and not event.get("final"):
            self.advance_to(event["update"])
