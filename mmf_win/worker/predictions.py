"""Predictions: their progress while MMF makes them, and afterwards a file that can be trusted.

MMF repeats and reorders rows when several GPUs predict (its sampler fills up the last batch), and names no
row that it lost. The result here has exactly the annotation file's ids, in its order, or is not written.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmf_win.compat.patch import wrap
from mmf_win.dataset.annotations import count_rows, read_rows
from mmf_win.dataset.own_memes import annotations_beside
from mmf_win.dataset.predictions import in_order, read_predictions, write_predictions
from mmf_win.errors import DataError
from mmf_win.files import replacing
from mmf_win.protocol import Attempt

if TYPE_CHECKING:
    from mmf_win.worker.hooks.observer import Observer

_INTERVAL = 1.0


def watch_scoring(observer: Observer) -> None:
    """Tell ``observer`` of each batch that is scored, and once a second how many rows are predicted."""
    from mmf.common.test_reporter import TestReporter

    @wrap(TestReporter, "prepare_batch")
    def prepared(prepare: Any, self: Any, batch: Any) -> Any:
        observer.heartbeat()
        return prepare(self, batch)

    if observer.request.annotations is None:
        return
    total = count_rows(Path(observer.request.annotations))
    next_event = time.monotonic()

    @wrap(TestReporter, "add_to_report")
    def counted(add: Any, self: Any, report: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal next_event
        add(self, report, model, *args, **kwargs)
        done = len(self.report)
        if done >= total or time.monotonic() >= next_event:
            next_event = time.monotonic() + _INTERVAL
            observer.event("predict", done=done, total=total)


def only_loader(of_datasets: Any) -> Any:
    """Return the DataLoader of the one dataset of MMF's own loader, such as a trainer's ``test_loader``."""
    loaders = of_datasets.loaders
    return next(iter(loaders.values() if isinstance(loaders, Mapping) else loaders))


def collect(request: Attempt) -> None:
    """Check the predictions of this attempt and write them in order to ``request.report``.

    Raises DataError where ids are missing, repeated or unknown, or a probability is not a number.
    """
    assert request.annotations is not None and request.report is not None
    rows = read_rows(Path(request.annotations))
    raw = sorted(request.attempt.raw.glob("*.csv"))
    if len(raw) != 1:
        raise DataError(f"{request.attempt_dir}: MMF wrote {len(raw)} prediction files instead of one")
    predictions = in_order(read_predictions(raw[0]), [str(row.id) for row in rows])
    report = Path(request.report)
    report.parent.mkdir(parents=True, exist_ok=True)
    if request.keep_annotations:
        with replacing(annotations_beside(report)) as temporary:
            shutil.copyfile(request.annotations, temporary)
    shown = zip(rows, predictions, strict=True)
    write_predictions(report, [replace(prediction, id=row.shown_id) for row, prediction in shown])
