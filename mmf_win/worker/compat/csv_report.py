"""Predictions on Windows have a blank row after each, and a reader may meet half a file."""

from __future__ import annotations

import csv
from pathlib import Path
from types import ModuleType
from typing import Any

from mmf_win.files import replacing
from mmf_win.worker.compat import importing
from mmf_win.worker.compat.cure import BOTH, Context, Cure

_MODULE = "mmf.common.test_reporter"


def csv_dump(self: Any, filepath: str) -> None:
    """In the place of ``TestReporter.csv_dump``: the same rows, by a temporary file and a rename."""
    with replacing(Path(filepath)) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, self.report[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.report)


def _replace(module: ModuleType) -> None:
    module.TestReporter.csv_dump = csv_dump


def _needed(context: Context) -> bool:
    return 'PathManager.open(filepath, "w")' in context.source(_MODULE)


CURE = Cure(
    name="csv-report",
    cures="TestReporter.csv_dump: opened without newline='', so Windows doubles the line ends",
    mmf=BOTH,
    library="Windows",
    needed=_needed,
    apply=lambda context: importing.after_import(_MODULE, _replace),
)
