"""lmdb 1.4 and later refuse to open a file twice in one process, as train and validation sets do."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from mmf_win.bridge.compat import importing
from mmf_win.bridge.compat.cure import BOTH, Cure

_MODULE = "mmf.datasets.databases.readers.feature_readers"


def open_shared(path: str, **options: Any) -> Any:
    """A read-only environment on ``path``, the same one for the whole process."""
    return _open(os.getpid(), Path(path).resolve(), tuple(sorted(options.items())))


@cache
def _open(process: int, path: Path, options: tuple[tuple[str, Any], ...]) -> Any:
    # The process is part of the key: an environment must not be used on the other side of a fork.
    import lmdb

    return lmdb.open(str(path), **dict(options))


def _share(module: ModuleType) -> None:
    module.lmdb = SimpleNamespace(open=open_shared)  # type: ignore[attr-defined]


CURE = Cure(
    name="lmdb-handles",
    cures="LMDBFeatureReader: the feature file is opened again for each split, which lmdb refuses",
    mmf=BOTH,
    library="lmdb >= 1.4",
    needed=lambda context: "lmdb.open(" in context.source(_MODULE),
    apply=lambda context: importing.after_import(_MODULE, _share),
)
