"""Shows the tasks of a sweep while they run: a bar a slot on a terminal, elsewhere a line a task."""

from __future__ import annotations

import time

from mmf_win.commands.progress import EventBar
from mmf_win.console import Progress, format_duration, print_status
from mmf_win.protocol import Event
from mmf_win.runs.scores import val_auroc
from mmf_win.sweeps.folder import Task
from mmf_win.sweeps.running import News, Slot


class SweepDisplay:
    """What a driver tells of ``total`` tasks, for people; see :class:`mmf_win.sweeps.driver.Driver`."""

    def __init__(self, total: int) -> None:
        self._all = Progress("all tasks", total, "task")
        self._slots: dict[int, _SlotDisplay] = {}

    def __enter__(self) -> SweepDisplay:
        self._all.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for shown in self._slots.values():
            shown.close()
        self._all.__exit__()

    def __call__(self, slot: Slot, news: News) -> None:
        """Show what is told of the task in a slot."""
        if isinstance(news, Task):
            if news.state == "running":
                self._slots[slot.number] = _SlotDisplay(f"{slot.resource}: {news.name}")
                print_status(f"started on {slot.resource}: {news.name}")
            else:
                self._ends(self._slots.pop(slot.number, _SlotDisplay("")), news)
        elif isinstance(news, str):
            print_status(news.rstrip("\n"))
        else:
            self._slots[slot.number].show(news)

    def _ends(self, shown: _SlotDisplay, task: Task) -> None:
        shown.close()
        score = f", best AUROC {shown.best:.4f}" if shown.best is not None else ""
        told = f": {task.message}" if task.message else score
        state = "stopped, to go on later" if task.state == "queued" else task.state
        print_status(f"{state}: {task.name}, {format_duration(time.monotonic() - shown.began)}{told}")
        if task.state != "queued":
            self._all.advance(1)


class _SlotDisplay(EventBar):
    """The task in a slot."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.best: float | None = None
        self.began = time.monotonic()
        self._title = title

    def show(self, event: Event) -> None:
        """Show how far a training is."""
        kind = event["kind"]
        if kind == "train_started":
            self.start(self._title, event["max_updates"], "update", event["update"], leave=False)
        elif kind == "train" and event["loss"] is not None:
            self.notes["loss"] = f"{event['loss']:.4f}"
        elif (auroc := val_auroc(event)) is not None:
            self.best = max(auroc, self.best or 0.0)
            self.notes["AUROC"] = f"{self.best:.4f}"
        if kind in ("train", "val") and not event.get("final"):
            self.advance_to(event["update"])
