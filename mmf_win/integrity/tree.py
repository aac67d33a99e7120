"""A folder compared with what it should hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# Python would import a stray one in place of the module that was meant.
_IMPORTABLE = frozenset({".py", ".pyc", ".pyd", ".so"})


@dataclass(frozen=True)
class Difference:
    """One file that is not as it should be.

    Attributes:
        kind: what is wrong with it.
        path: relative to the folder, with ``/`` on every system.
        detail: more about it, where there is more to say.
    """

    kind: Literal["missing", "changed", "unreadable", "extra"]
    path: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.path}" + (f" ({self.detail})" if self.detail else "")


def differences(
    root: Path, expected: Mapping[str, str], identify: Callable[[Path], str]
) -> Iterator[Difference]:
    """Files under ``root`` that are missing, changed, or importable without being expected.

    Other unexpected files are let be: Python writes its ``__pycache__`` there, and an editor its own.

    Args:
        root: the folder.
        expected: the identity of each file by its path, relative and with ``/``.
        identify: the identity of a file on disk, to compare with the expected one.
    """
    for path, identity in expected.items():
        file = root.joinpath(*path.split("/"))
        if not file.is_file():
            yield Difference("missing", path)
        elif identify(file) != identity:
            yield Difference("changed", path)
    for path in _importable(root):
        if path not in expected:
            yield Difference("extra", path)


def _importable(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            file = Path(folder, name)
            if file.suffix in _IMPORTABLE:
                yield file.relative_to(root).as_posix()
