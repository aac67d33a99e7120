"""Making the names that MMF gave to files legal on every system."""

from __future__ import annotations

from pathlib import Path

from mmf_win.errors import DataError
from mmf_win.paths import is_portable, portable_name


def fix(folder: Path) -> list[tuple[Path, Path]]:
    """Rename every file and folder below ``folder`` whose name is not legal on Windows.

    Returns:
        Old and new path of each, in the order in which they were renamed: contents before their folder.

    Raises:
        DataError: the new name is taken; nothing has been renamed then.
    """
    planned = [
        (path, path.with_name(portable_name(path.name)))
        for path in sorted(folder.rglob("*"), key=lambda path: -len(path.parts))
        if not is_portable(path.name)
    ]
    targets = [new for _, new in planned]
    for old, new in planned:
        if new.exists() or targets.count(new) > 1:
            raise DataError(
                f"{old} cannot become {new.name}, which is taken", hint="rename one of them yourself"
            )
    for old, new in planned:
        old.rename(new)
    return planned
