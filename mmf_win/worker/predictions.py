"""From the file that MMF's predict wrote to one that can be trusted.

MMF repeats and reorders rows when several GPUs predict (its sampler fills up the last batch), and names no
row that it lost. The result here has exactly the annotation file's ids, in its order, or is not written.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from mmf_win.dataset.annotations import read_rows
from mmf_win.dataset.own_memes import annotations_beside
from mmf_win.dataset.predictions import in_order, read_predictions, write_predictions
from mmf_win.errors import DataError
from mmf_win.files import replacing
from mmf_win.protocol import AttemptRequest


def collect(request: AttemptRequest) -> None:
    """Check the predictions of this attempt and write them in order to ``request.report``.

    Raises:
        DataError: ids are missing, repeated or unknown, or a probability is not a number.
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
