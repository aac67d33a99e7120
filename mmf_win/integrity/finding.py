"""What verifying files has shown, in the words that every command uses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from mmf_win.console import shell_line
from mmf_win.errors import MmfwError
from mmf_win.paths import DatasetPaths, data_option

State: TypeAlias = Literal["intact", "recorded", "not verified", "missing", "damaged"]
"""State of files that belong together.

``intact``: verified. ``recorded``: unchanged since they were first read, and there is nothing else to verify
them against. ``not verified``: they are there, and have to be read. ``missing``: they are not there, and
never were. ``damaged``: a file is missing, changed or unreadable.
"""

Part: TypeAlias = Literal["dataset", "features", "runs", "mmf"]
"""What can be verified and repaired by itself."""


@dataclass(frozen=True)
class Difference:
    """A file that is not what it should be; its path is relative to the folder, and has ``/`` everywhere."""

    kind: Literal["missing", "changed", "unreadable"]
    path: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.path}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True)
class Finding:
    """What is known of files that belong together.

    Attributes:
        part: what they are part of; repairing that part repairs them.
        what: they are, for people.
        against: what they were verified against, for people.
        problems: what is wrong, a line for each file.
        size: bytes of the files that are there; None where nobody has counted.
        verified: when they were last found intact, in seconds since the epoch; None if they changed since.
        error: why they cannot be verified or repaired.
        repaired: what was wrong and has been repaired, as in ``problems``.
    """

    part: Part
    what: str
    folder: Path
    state: State
    against: str = ""
    problems: tuple[str, ...] = ()
    size: int | None = None
    verified: float | None = None
    error: MmfwError | None = None
    repaired: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether the files are there, and as they should be as far as anybody knows."""
        return self.state in ("intact", "recorded")


def repair_line(folder: Path) -> str | None:
    """The command that repairs the dataset or the features in a folder; None where MMF looks for neither."""
    for data_dir in folder.parents:
        paths = DatasetPaths.below(data_dir)
        if folder in (paths.root, paths.features):
            part = "dataset" if folder == paths.root else "features"
            return f"`{shell_line('mmfw', 'repair', part, *data_option(data_dir))}`"
    return None
