"""MMF prefers other suffixes to the one that an annotation names: it may load ``cat.jpg`` for ``cat.png``."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from mmf_win.worker.compat import importing
from mmf_win.worker.compat.cure import BOTH, Cure

_MODULE = "mmf.datasets.databases.image_database"


def _take_names_as_they_are(module: ModuleType) -> None:
    database: Any = module.ImageDatabase
    by_other_suffixes, load = module.get_possible_image_paths, database.from_path

    @wraps(by_other_suffixes)
    def existing_or_similar(path: str) -> str:
        return path if Path(path).is_file() else str(by_other_suffixes(path))

    @wraps(load)
    def from_path(self: Any, paths: Any, use_transforms: bool = True) -> Any:
        # 1.0.0rc10 looks for relative paths in whatever folder the process runs in.
        paths = [paths] if isinstance(paths, str) else paths
        return load(self, [str(Path(self.base_path, path)) for path in paths], use_transforms)

    module.get_possible_image_paths = existing_or_similar  # type: ignore[attr-defined]
    database.from_path = from_path


CURE = Cure(
    name="image-paths",
    cures="ImageDatabase: loads cat.jpg for cat.png where both exist; rc10 also looks in the current folder",
    mmf=BOTH,
    library="any",
    needed=lambda context: "def get_possible_image_paths" in context.source(_MODULE),
    apply=lambda context: importing.after_import(_MODULE, _take_names_as_they_are),
)
