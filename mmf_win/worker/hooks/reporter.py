"""Progress of a prediction, and signs of life from a validation; the same for every MMF version."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mmf.common.test_reporter import TestReporter

from mmf_win.dataset.annotations import count_rows
from mmf_win.worker.hooks.observer import Observer

_INTERVAL = 1.0


def register(observer: Observer) -> None:
    """Tell ``observer`` of each batch, and how many rows are predicted: once a second and at the end."""
    _observe_batches(observer)
    if observer.request.annotations is not None:
        _observe_predictions(observer, count_rows(Path(observer.request.annotations)))


def _observe_batches(observer: Observer) -> None:
    prepare = TestReporter.prepare_batch

    def prepared(self: Any, batch: Any) -> Any:
        observer.heartbeat()
        return prepare(self, batch)

    TestReporter.prepare_batch = prepared


def _observe_predictions(observer: Observer, total: int) -> None:
    add = TestReporter.add_to_report
    next_event = time.monotonic()

    def counted(self: Any, report: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal next_event
        add(self, report, model, *args, **kwargs)
        done = len(self.report)
        if done >= total or time.monotonic() >= next_event:
            next_event = time.monotonic() + _INTERVAL
            observer.event("predict", done=done, total=total)

    TestReporter.add_to_report = counted
