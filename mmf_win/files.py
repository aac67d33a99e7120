"""Files that take their place whole or not at all, and JSON in them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_TRIES = 20 if sys.platform == "win32" else 1
_PAUSE = 0.1


def rename(old: Path, new: Path) -> None:
    """Rename a file or folder to a name that is free.

    On Windows a virus scanner may hold a fresh file for a moment, which refuses that; hence two seconds of
    patience there.

    Raises:
        OSError: it cannot be renamed.
    """
    _patiently(lambda: old.rename(new))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write a file to, which then takes the place of ``path``.

    A reader of ``path`` sees the old file or the whole new one, never a part. When the block raises, nothing
    is left of the new one.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        yield temporary
        _patiently(lambda: temporary.replace(path))
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Write ``value`` so that a reader sees the old file or the whole new one, never a part."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def read_json(path: Path) -> Any:
    """The JSON value in ``path``.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no JSON.
    """
    return json.loads(path.read_text(encoding="utf-8"))


def _patiently(move: Callable[[], object]) -> None:
    for _ in range(_TRIES - 1):
        try:
            move()
        except PermissionError:
            time.sleep(_PAUSE)
        else:
            return
    move()
