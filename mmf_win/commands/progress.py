"""Display of a worker's events while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mmf_win import machine
from mmf_win.console import Progress, Unit, print_status
from mmf_win.dataset.coverage import Coverage
from mmf_win.protocol import Event
from mmf_win.runs.history import describe_loaded_weights
from mmf_win.runs.scores import val_auroc


class EventBar:
    """Progress bar that is driven by a worker's events.

    Attributes:
        figures: Figures to show with the bar, by name.
    """

    def __init__(self) -> None:
        self.figures: dict[str, str] = {}
        self._bar: Progress | None = None

    def start(self, title: str, total: int | None, unit: Unit, done: int, *, leave: bool = True) -> None:
        """Start a bar; the arguments are those of :class:`Progress`."""
        self.close()
        self._bar = Progress(title, total, unit, done, leave=leave).__enter__()

    def advance_to(self, done: int, *more_figures: str) -> None:
        """Move the bar to ``done`` units, if one was started."""
        if self._bar is not None:
            notes = [*(f"{name} {value}" for name, value in self.figures.items()), *more_figures]
            self._bar.annotate(", ".join(notes))
            self._bar.advance(max(0, done - self._bar.done))

    def close(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.__exit__()
            self._bar = None


class RunDisplay(EventBar):
    """Display of the events of one attempt; see :data:`mmf_win.runs.attempts.DisplayFactory`."""

    def __init__(self) -> None:
        super().__init__()
        self._best_update: int | None = None
        self._gpu_figures: Iterator[str] = iter(())
        self._is_on_cpu = False

    def __enter__(self) -> Callable[[Event], None]:
        print_status("loading MMF …")
        return self._show_event

    def __exit__(self, *_: object) -> None:
        self.close()

    def _show_event(self, event: Event) -> None:
        show = getattr(self, f"_on_{event['kind']}", None)
        if show is not None:
            show(event)

    def _on_loaded(self, event: Event) -> None:
        if event["copied"] < event["total"]:
            print_status(describe_loaded_weights(event))

    def _on_train_started(self, event: Event) -> None:
        seed = "" if event["update"] else f", seed {event['seed']}"  # a resumed run keeps its seed
        precision = "" if event["precision"] == "fp32" else f" in {event['precision']}"
        print_status(
            f"training on {event['device']}{precision}: {event['parameters']:,} parameters, "
            f"batch {event['batch']}{seed}{_coverage_text(event, ', ')}"
        )
        if event["device"].startswith("cuda"):
            self._gpu_figures = machine.iter_gpu_usage()
        if event.get("known_fit"):
            hint = "--ignore-known-fits starts with the whole batch"
            print_status(f"micro-batch {event['micro_batch']}, known to fit ({hint})")
        self._is_on_cpu = event["device"] == "cpu"
        self.start("training", event["max_updates"], "update", event["update"])

    def _on_micro_batch(self, event: Event) -> None:
        if event["found"]:
            reason = " (not limited on a CPU)" if self._is_on_cpu else ""
            print_status(f"micro-batch {event['rows']}{reason}")

    def _on_train(self, event: Event) -> None:
        if event["loss"] is not None:
            self.figures["loss"] = f"{event['loss']:.4f}"
        self._advance(event["update"])

    def _on_checkpoint(self, event: Event) -> None:
        if event["best"]:  # this event comes before that of its validation
            self._best_update = event["update"]

    def _on_val(self, event: Event) -> None:
        auroc = val_auroc(event)
        if event.get("final"):
            self.close()
        elif auroc is not None and self._bar is not None:
            best = event["update"] == self._best_update
            self.figures["AUROC"] = f"{auroc:.4f}"
            score = f"{auroc:.4f}{_coverage_text(event, ' on ')}{' (best)' * best}"
            print_status(f"update {event['update']}: validation AUROC {score}")
        self._advance(event["update"])

    def _on_note(self, event: Event) -> None:
        print_status(f"warning: {event['text']}")

    def _on_predict(self, event: Event) -> None:
        if self._bar is None:
            self.start("predicting", event["total"], "image", 0)
        self._advance(event["done"])

    def _advance(self, done: int) -> None:
        self.advance_to(done, *filter(None, [next(self._gpu_figures, "")]))


def _coverage_text(event: Event, prefix: str) -> str:
    """Return the event's coverage after ``prefix``, or an empty text if no rows are known to be excluded."""
    data = Coverage.from_json(event.get("data"))
    return f"{prefix}{data}" if data and data.is_partial else ""
