"""Progress reports while MMF predicts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmf_win.compat.mmf_data import cached_annotation_file
from mmf_win.compat.patch import wrap
from mmf_win.protocol.attempt import PredictTask

if TYPE_CHECKING:
    from mmf_win.worker.hooks.observer import Observer

_INTERVAL_SECONDS = 1.0


def report_scoring_progress(observer: Observer) -> None:
    """Report a heartbeat for each scored batch and, once a second, the number of predicted rows."""
    from mmf.common.test_reporter import TestReporter

    @wrap(TestReporter, "prepare_batch")
    def prepare_with_heartbeat(prepare: Any, self: Any, batch: Any) -> Any:
        observer.heartbeat()
        return prepare(self, batch)

    if not isinstance(observer.request.task, PredictTask):
        return
    total = len(cached_annotation_file(Path(observer.request.task.annotations_file)).lines)
    next_event = time.monotonic()

    @wrap(TestReporter, "add_to_report")
    def add_and_report(add: Any, self: Any, report: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal next_event
        add(self, report, model, *args, **kwargs)
        done = len(self.report)
        if done >= total or time.monotonic() >= next_event:
            next_event = time.monotonic() + _INTERVAL_SECONDS
            observer.write_event("predict", done=done, total=total)


def get_single_loader(multi_loader: Any) -> Any:
    """Return the only DataLoader of MMF's multi-loader, such as a trainer's ``test_loader``."""
    loaders = multi_loader.loaders
    return next(iter(loaders.values() if isinstance(loaders, Mapping) else loaders))
