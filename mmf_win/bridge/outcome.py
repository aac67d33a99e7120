"""What an exception that left MMF means for the user."""

from __future__ import annotations

import errno
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from mmf_win.errors import CheckpointError, DataError, MmfwError, ResourceError, UsageError
from mmf_win.protocol import Exit, Outcome

# WinError 1455: the paging file is too small (https://learn.microsoft.com/windows/win32/debug/system-error-codes)
_OUT_OF_PAGING_FILE = 1455
# What torch says in a RuntimeError of no kind of its own.
_SAID: tuple[tuple[Outcome, re.Pattern[str]], ...] = (
    ("cuda_oom", re.compile(r"CUDA( error:)? out of memory|CUBLAS_STATUS_ALLOC_FAILED")),
    ("host_oom", re.compile(r"not enough memory|can't allocate memory")),
    ("host_oom", re.compile(r"killed by signal: Killed|insufficient shared memory")),
    ("disk", re.compile(r"PytorchStreamWriter failed|No space left on device")),
    ("nan", re.compile(r"(?i)\bnan\b")),
)  # fmt: skip


class StopRequested(Exception):
    """The parent asked for a stop, and what there was to save is saved."""


class WeightsMissing(CheckpointError):
    """A checkpoint leaves weights of the model unset."""


def classify(error: BaseException, *, prepared: bool = True) -> Exit:
    """The ending that ``error`` stands for, judged by its type, its words and where in MMF it arose.

    Args:
        error: what left MMF.
        prepared: MMF could be imported; before that, every fault is the environment's.
    """
    where = _innermost(error)
    message = _one_line(error)
    if isinstance(error, (StopRequested, KeyboardInterrupt)):
        return Exit("interrupted", message)
    if isinstance(error, MmfwError):
        return Exit(_outcome_of_ours(error), message, error.hint, where)
    outcomes = _outcomes(error) if prepared else iter(())
    return Exit(next(outcomes, "internal" if prepared else "mmf"), message, None, where)


def _outcome_of_ours(error: MmfwError) -> Outcome:
    if isinstance(error, CheckpointError):
        return "checkpoint"
    if isinstance(error, DataError):
        return "data"
    if isinstance(error, ResourceError):
        return "disk"
    return "config" if isinstance(error, UsageError) else "mmf"


def _outcomes(error: BaseException) -> Iterator[Outcome]:
    """What speaks for which ending, the strongest first."""
    # torch may be the very thing that cannot be imported.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
        yield "cuda_oom"
    if isinstance(error, MemoryError) or getattr(error, "winerror", None) == _OUT_OF_PAGING_FILE:
        yield "host_oom"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        yield "disk"
    if isinstance(error, ImportError):
        yield "mmf"
    if isinstance(error, RuntimeError):
        yield from (outcome for outcome, said in _SAID if said.search(str(error)))
    functions = {
        (Path(frame.filename).name, frame.name) for frame in traceback.extract_tb(error.__traceback__)
    }
    if ("checkpoint.py", "_load") in functions:
        yield "checkpoint"
    if _is_of_network(error):
        yield "network"
    if isinstance(error, OSError) and _is_of_mmf(error.filename):
        yield "mmf"
    if any(name == "configuration.py" for name, _ in functions):
        yield "config"
    if isinstance(error, OSError) or any(name.endswith("_database.py") for name, _ in functions):
        yield "data"


def _is_of_network(error: BaseException) -> bool:
    """Whether a download failed, by whichever library made it."""
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return bool(modules & {"requests", "urllib3", "httpx", "socket"}) or type(error).__name__ == "URLError"


def _is_of_mmf(file: object) -> bool:
    """Whether a file that cannot be read is one of MMF's own."""
    mmf = sys.modules.get("mmf")
    return (
        mmf is not None and mmf.__file__ is not None and str(file).startswith(str(Path(mmf.__file__).parent))
    )


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, (MmfwError, StopRequested)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _innermost(error: BaseException) -> str | None:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if {"mmf", "mmf_win"} & set(Path(frame.filename).parts):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return None
