"""lmdb 1.4 and later refuse to open a file twice in one process, as train and validation sets do."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from mmf_win.worker.compat import importing
from mmf_win.worker.compat.cure import BOTH, Cure

_MODULE = "mmf.datasets.databases.readers.feature_readers"


def open_shared(path: str, **options: Any) -> Any:
    """A read-only environment on ``path``, the same one for the whole process and its forked children.

    LMDB forbids to carry an environment over a fork for the sake of its lock file. MMF opens without one,
    so nothing is carried but a map of the file; and lmdb would refuse to open it again in the child.
    """
    return _open(Path(path).resolve(), tuple(sorted(options.items())))


@cache
def _open(path: Path, options: tuple[tuple[str, Any], ...]) -> Any:
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
