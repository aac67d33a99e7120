"""Shows the worker's events to the user while it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mmf_win import console
from mmf_win.console import Progress, say
from mmf_win.dataset.coverage import Coverage
from mmf_win.protocol import Event, EventReader, read_events
from mmf_win.runs.gpus import GpuMonitor
from mmf_win.runs.history import val_auroc


class Watcher:
    """Follows a run's events; :meth:`poll` is called several times a second by the supervisor.

    Args:
        events: the run's ``events.jsonl``; what it holds already is history and not shown.
        attempt: whose events to show; a training and a prediction may write to the same file.
        on_training: called when training begins.
    """

    def __init__(self, events: Path, attempt: str, on_training: Callable[[], None]) -> None:
        scores = [score for event in read_events(events) if (score := val_auroc(event)) is not None]
        self._reader = EventReader(events, from_end=True)
        self._attempt = attempt
        self._saving = False
        self._progress: Progress | None = None
        self._on_training = on_training
        self._best = max(scores, default=None)
        self._notes: dict[str, str] = {}
        self._gpu: GpuMonitor | None = None
        self._cpu = False

    def __enter__(self) -> Watcher:
        say("loading MMF …")
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def poll(self) -> bool:
        """Show what is new; True when there was something, and while a checkpoint is being written."""
        events = [event for event in self._reader.poll() if event.get("attempt") == self._attempt]
        for event in events:
            self._saving = event["kind"] == "saving"
            show = getattr(self, f"_on_{event['kind']}", None)
            if show is not None:
                show(event)
        return bool(events) or self._saving

    def _on_train_started(self, event: Event) -> None:
        self._on_training()
        say(
            f"training on {event['device']}: {event['parameters']:,} parameters, "
            f"batch {event['batch']}, seed {event['seed']}{_part(event, ', ')}"
        )
        if event["device"].startswith("cuda"):
            self._gpu = GpuMonitor()
        if event.get("remembered"):
            say(f"{event['micro_batch']} rows at once, which fitted before (--no-memory forgets it)")
        self._cpu = event["device"] == "cpu"
        self._begin("training", event["max_updates"], "update", event["update"])

    def _on_micro_batch(self, event: Event) -> None:
        if event["found"]:
            why = " (on a CPU there is no limit to look for)" if self._cpu else ""
            (self._progress or console).say(f"{event['rows']} rows at once{why}")

    def _on_train(self, event: Event) -> None:
        if event["loss"] is not None:
            self._notes["loss"] = f"{event['loss']:.4f}"
        self._advance_to(event["update"])

    def _on_val(self, event: Event) -> None:
        auroc = val_auroc(event)
        if event.get("final"):
            self._end()
        elif auroc is not None and self._progress is not None:
            best = self._best is None or auroc > self._best
            self._best = auroc if best else self._best
            self._notes["AUROC"] = f"{auroc:.4f}"
            score = f"{auroc:.4f}{_part(event, ' on ')}{' (best)' * best}"
            self._progress.say(f"update {event['update']}: validation AUROC {score}")
        self._advance_to(event["update"])

    def _on_note(self, event: Event) -> None:
        say(f"note: {event['text']}")

    def _on_predict(self, event: Event) -> None:
        if self._progress is None:
            self._begin("predicting", event["total"], "image", 0)
        self._advance_to(event["done"])

    def _begin(self, title: str, total: int | None, unit: str, initial: int) -> None:
        self._end()
        assert unit in ("update", "image")
        self._progress = Progress(title, total, "update" if unit == "update" else "image", initial)
        self._progress.__enter__()

    def _advance_to(self, amount: int) -> None:
        if self._progress is not None:
            notes = [f"{key} {value}" for key, value in self._notes.items()]
            if self._gpu is not None and (figures := self._gpu.figures()):
                notes.append(figures)
            self._progress.annotate(", ".join(notes))
            self._progress.advance(max(0, amount - self._progress.done))

    def _end(self) -> None:
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None


def _part(event: Event, before: str) -> str:
    """What the event's rows are a part of, after ``before``; empty where none are known to be left out."""
    data = Coverage.read(event.get("data"))
    return f"{before}{data}" if data and data.is_partial else ""
