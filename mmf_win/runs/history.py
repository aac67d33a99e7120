"""What a run's files say about it: its state, how far it came and how well."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmf_win.errors import UsageError
from mmf_win.protocol import Event, read_events
from mmf_win.runs.folder import Run
from mmf_win.supervise import is_alive

AUROC = "hateful_memes/roc_auc"


@dataclass(frozen=True)
class Summary:
    """One line about a run.

    Attributes:
        id: ``<name>/<time>``.
        path: the run's folder.
        preset: what was trained.
        state: ``done``, ``running``, ``interrupted``, ``killed``, or ``failed: <class>``.
        updates, max_updates: how far it came, and how far it was to go; None before training began.
        best_auroc: the best validation AUROC, 0 to 1.
        started: seconds since the epoch.
        seconds: time spent in training, over all attempts.
        size: bytes on disk.
    """

    id: str
    path: str
    preset: str
    state: str
    updates: int | None
    max_updates: int | None
    best_auroc: float | None
    started: float
    seconds: float
    size: int


def all_runs(save_dir: Path) -> list[Run]:
    """Every run under ``save_dir``, the newest first."""
    runs = [Run(file.parent) for file in save_dir.glob("*/*/request.json")]
    return sorted(runs, key=lambda run: (run.path.name, run.path.parent.name), reverse=True)


def find(save_dir: Path, wanted: str | None, preset: str | None = None) -> Run:
    """A run by its id, its name (the newest of that name) or its folder; without one, the newest.

    Raises:
        UsageError: there is no such run.
    """
    if wanted is not None:
        own = Run(Path(wanted).expanduser().absolute())
        if own.request_file.is_file():
            return own
    runs = all_runs(save_dir)
    for run in runs:
        if wanted in (None, run.id, run.path.parent.name, run.path.name) and (
            preset is None or run.request().preset == preset
        ):
            return run
    of = f" of preset {preset}" if preset else ""
    if wanted is None:
        raise UsageError(f"{save_dir}: there is no run{of} yet", hint="`mmfw train PRESET` makes one")
    raise UsageError(f"{save_dir}: there is no run named {wanted}", hint="`mmfw runs` lists them")


def summarize(run: Run) -> Summary:
    """What the run's files say about it."""
    request = run.request()
    events = read_events(run.events)
    # The final validation is of the best checkpoint, which may lie behind.
    counted = [event for event in events if "update" in event and not event.get("final")]
    scores = [score for event in events if (score := val_auroc(event)) is not None]
    limits = [event["max_updates"] for event in events if event.get("max_updates") is not None]
    return Summary(
        id=run.id,
        path=str(run.path),
        preset=request.preset,
        state=state(run, events),
        updates=counted[-1]["update"] if counted else None,
        max_updates=limits[-1] if limits else request.updates,
        best_auroc=max(scores, default=None),
        started=request.created,
        seconds=round(_seconds(events), 1),
        size=sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file()),
    )


def state(run: Run, events: list[Event]) -> str:
    """How the run stands."""
    end = run.exit()
    if end is not None:
        plain = {"ok": "done", "interrupted": "interrupted"}
        return plain.get(end.outcome, f"failed: {end.outcome}")
    pids = [event["pid"] for event in events if event["kind"] == "run_started"]
    return "running" if pids and is_alive(pids[-1]) else "killed"


def val_auroc(event: Event) -> float | None:
    """The validation AUROC that an event reports, if it does."""
    if event["kind"] != "val":
        return None
    metrics: dict[str, Any] = event.get("metrics", {})
    value = metrics.get(AUROC)
    return None if value is None else float(value)


def _seconds(events: list[Event]) -> float:
    """Time between the first and the last event of each training attempt, summed."""
    total = 0.0
    start: float | None = None
    for event in events:
        if event["kind"] == "run_started":
            start = event["t"] if event.get("action") == "train" else None
            last = event["t"]
        elif start is not None:
            total += event["t"] - last
            last = event["t"]
    return total
