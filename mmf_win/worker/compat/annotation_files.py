"""MMF fails at what many programs write into an annotation file; it reads them as mmfw does instead."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from mmf_win.dataset.annotations import objects_for_mmf
from mmf_win.worker.compat import importing
from mmf_win.worker.compat.cure import BOTH, Cure

_MODULE = "mmf.datasets.databases.annotation_database"


def load_jsonl(self: Any, path: str) -> None:
    """In the place of ``AnnotationDatabase._load_jsonl``."""
    self.data, self.start_idx = objects_for_mmf(Path(path)), 0


def _replace(module: ModuleType) -> None:
    module.AnnotationDatabase._load_jsonl = load_jsonl


CURE = Cure(
    name="annotation-files",
    cures="AnnotationDatabase: fails at a byte order mark, blank lines, a JSON list and labels of null",
    mmf=BOTH,
    library="any",
    needed=lambda context: "def _load_jsonl" in context.source(_MODULE),
    apply=lambda context: importing.after_import(_MODULE, _replace),
)
