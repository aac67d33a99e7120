"""Which checkpoint of a run to use. Looks at files only, so that no torch is needed to choose."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from mmf_win.console import say
from mmf_win.errors import CheckpointError
from mmf_win.runs.folder import Run

# The first bytes of torch's file format before 1.6: its magic number, pickled.
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_NUMBERED = re.compile(r"model_(\d+)\.ckpt$")


@dataclass(frozen=True)
class Choice:
    """A checkpoint to use.

    Attributes:
        path: the file.
        passed_over: files that would have come first but are broken.
    """

    path: Path
    passed_over: tuple[Path, ...] = ()


def problem(path: Path) -> str | None:
    """Why ``path`` cannot be a whole checkpoint; None when nothing speaks against it.

    torch writes a zip file whose directory comes last, so one that was cut off has none.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(_LEGACY))
    except FileNotFoundError:
        return "there is no such file"
    except OSError as error:
        return error.strerror or str(error)
    if head == _LEGACY:
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = any(name.endswith("/data.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, ValueError, OSError):
        return "it is cut off or not a checkpoint"
    return None if pickled else "it is a zip file but not a checkpoint"


def choose(run: Run, wanted: str) -> Choice:
    """The checkpoint that ``best``, ``last`` or a path stands for.

    A broken ``last`` falls back to the newest whole one, and ``best`` to ``last`` in a run that was too short
    to have a best.

    Raises:
        CheckpointError: there is none, or the only ones are broken.
    """
    if wanted not in ("best", "last"):
        return Choice(checked(Path(wanted).expanduser().absolute()))
    broken: list[Path] = []
    for path in _candidates(run, wanted):
        if problem(path) is None:
            return Choice(path, tuple(broken))
        broken.append(path)
    if broken:
        raise CheckpointError(
            f"{broken[0]}: {problem(broken[0])}", hint="no other checkpoint of this run is whole"
        )
    raise CheckpointError(
        f"run {run.id} has no checkpoint", hint=f"`mmfw train` makes one; see {run.log} for how the run went"
    )


def announced(choice: Choice) -> Path:
    """The chosen file, once the user knows which were passed over."""
    for broken in choice.passed_over:
        say(f"{broken}: {problem(broken)}; using {choice.path.name} instead")
    return choice.path


def checked(path: Path) -> Path:
    """``path`` itself.

    Raises:
        CheckpointError: it cannot be a whole checkpoint.
    """
    reason = problem(path)
    if reason:
        raise CheckpointError(f"{path}: {reason}", hint="name a whole checkpoint, such as a run's best.ckpt")
    return path


def _candidates(run: Run, wanted: str) -> list[Path]:
    """Existing files, the preferred one first."""
    folder = run.checkpoints
    numbered = [path for path in (folder / "models").glob("model_*.ckpt") if _NUMBERED.search(path.name)]
    numbered.sort(key=_update, reverse=True)
    last = [folder / "current.ckpt", *numbered]
    best = folder / "best.ckpt"
    ordered = [best, *last] if wanted == "best" else [*last, best]
    return [path for path in ordered if path.exists()]


def _update(path: Path) -> int:
    match = _NUMBERED.search(path.name)
    return int(match[1]) if match else -1
