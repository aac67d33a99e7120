"""What an exception that left MMF means for the user."""

from __future__ import annotations

import traceback
from pathlib import Path

from mmf_win.errors import CheckpointError, DataError, MmfwError
from mmf_win.protocol import Exit, Outcome


class StopRequested(Exception):
    """The parent asked for a stop, and the checkpoint is saved."""


class WeightsMissing(CheckpointError):
    """A checkpoint leaves weights of the model unset."""


def classify(error: BaseException) -> Exit:
    """The ending that ``error`` stands for, judged by its type and by where in MMF it arose."""
    where = _innermost(error)
    message = _one_line(error)
    if isinstance(error, StopRequested):
        return Exit("interrupted", message)
    if isinstance(error, CheckpointError):
        return Exit("checkpoint", message, error.hint, where)
    if isinstance(error, DataError):
        return Exit("data", message, error.hint, where)
    if isinstance(error, MmfwError):
        return Exit("mmf", message, error.hint, where)
    return Exit(_outcome(error), message, None, where)


def _outcome(error: BaseException) -> Outcome:
    import torch

    functions = {
        (Path(frame.filename).name, frame.name) for frame in traceback.extract_tb(error.__traceback__)
    }
    if isinstance(error, torch.OutOfMemoryError):
        return "cuda_oom"
    if isinstance(error, MemoryError):
        return "host_oom"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, ImportError):
        return "mmf"
    if ("checkpoint.py", "_load") in functions:
        return "checkpoint"
    if any(name == "configuration.py" for name, _ in functions):
        return "config"
    if isinstance(error, RuntimeError) and "NaN" in str(error):
        return "nan"
    if isinstance(error, OSError) or any(name.endswith("_database.py") for name, _ in functions):
        return "data"
    return "internal"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MmfwError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _innermost(error: BaseException) -> str | None:
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        parts = Path(frame.filename).parts
        if "mmf" in parts or "mmf_win" in parts:
            return f"{frame.filename}:{frame.lineno}"
    return None
