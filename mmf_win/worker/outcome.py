"""Classification of the exception that ended an attempt."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmf_win.errors import SHM_HINT, CheckpointError, DataError, MmfwError, ResourceError, UsageError
from mmf_win.files import DISK_FULL_ERRNOS, to_mmfw_error
from mmf_win.protocol import AttemptOutcome, OutcomeKind

# WinError 1455: the paging file is too small (https://learn.microsoft.com/windows/win32/debug/system-error-codes)
_OUT_OF_PAGING_FILE = 1455
_NO_HANDLE_ERRNOS = {errno.EMFILE, errno.ENFILE}
_TOO_MANY_FILES = re.compile(r"Too many open files|received \d+ items of ancdata|with exit code 24\b")
_LOST_RANK = re.compile(r"gloo[/\\]transport|ncclRemoteError")
_SHARED_MEMORY = re.compile(r"shared memory|</torch_\d|/dev/shm/|SemLock\(")
# Messages that torch raises as a plain RuntimeError or forwards from another process.
_KIND_BY_MESSAGE: tuple[tuple[OutcomeKind, re.Pattern[str]], ...] = (
    ("cuda_oom", re.compile(r"CUDA( error:)? out of memory|CU(BLAS|DNN|SPARSE)_STATUS_ALLOC_FAILED")),
    ("disk", _TOO_MANY_FILES),
    ("host_oom", re.compile(r"not enough memory|[Cc]an('|no)t allocate memory|can't start new thread")),
    ("host_oom", _SHARED_MEMORY),  # before "disk": full shared memory has the same error message
    ("disk", re.compile(r"PytorchStreamWriter failed|No space left on device")),
    ("killed", _LOST_RANK),
    ("nan", re.compile(r"(?i)\bnan\b")),
)
# torch raises this in a signal handler; the interrupted code may then raise another error.
_LOADER_WORKER_KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([^.\n]+)\.")
# In the error of transformers if HF_HUB_OFFLINE forbids a download.
_HUB_IS_OFFLINE = "offline-mode'"
_OUT_OF_MEMORY_SIGNALS = {"Killed", "Bus error"}
# torch forwards the error of a DataLoader worker as the text of its traceback.
_FORWARDED_TRACEBACK = re.compile(r"^Caught \w+ in DataLoader worker.*\nOriginal Traceback")
_FRAME = re.compile(r'^ *File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
# MMF's validation loop in both versions; methods of a user's model may have the same names.
_VALIDATION_FRAME = re.compile(
    r'^ *File ".*[\\/]mmf[\\/]trainers[\\/].*", line \d+, in (evaluate|evaluation_loop)$', re.MULTILINE
)


class StopRequested(Exception):  # noqa: N818 - not an error
    """A stop request from the parent; the run is saved if there was anything to save."""


class ChecksFinished(Exception):  # noqa: N818 - not an error
    """The end of an attempt that only checks the model; no training follows."""


class DivergedError(Exception):
    """A loss, gradient or weight that is not finite.

    Attributes:
        details: ``update``, the number of completed updates; ``quantity``, which is ``loss``, ``gradient`` or
            ``weights``; and the location if it is known. The keys are fields of the event ``nonfinite``.
    """

    def __init__(self, message: str, update: int, quantity: str, **details: Any) -> None:
        super().__init__(message)
        self.details: dict[str, Any] = {"update": update, "quantity": quantity, **details}


class UntrustedCheckpointError(CheckpointError):
    """A checkpoint with classes; loading them could run arbitrary code."""


_KIND_BY_CLASS: tuple[tuple[OutcomeKind, type[BaseException]], ...] = (
    ("interrupted", StopRequested),
    ("interrupted", KeyboardInterrupt),
    ("nan", DivergedError),
    ("untrusted", UntrustedCheckpointError),
    ("checkpoint", CheckpointError),
    ("data", DataError),
    ("disk", ResourceError),
    ("config", UsageError),
    ("mmf", MmfwError),
)


def classify_exception(error: BaseException, *, is_prepared: bool = True) -> AttemptOutcome:
    """Classify the exception that ended an attempt by its type, its message and its traceback.

    Args:
        error: The exception.
        is_prepared: MMF has been imported. Before that, every failure except a lack of memory or disk space
            counts as ``mmf``.

    Returns:
        The outcome with its message, hint and source location.
    """
    error_class, message = _error_class_and_message(error)
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    forwarded_trace = str(error) if _FORWARDED_TRACEBACK.search(str(error)) else ""
    own_trace = "".join(traceback.format_tb(error.__traceback__)) + forwarded_trace
    frames = [(Path(file), line, function) for file, line, function in _FRAME.findall(own_trace)]
    frame_names = {(path.name, function) for path, _, function in frames}
    kind: OutcomeKind = next(_possible_outcomes(error, error_class, message, trace, frame_names), "internal")
    if not is_prepared and kind not in ("interrupted", "host_oom", "disk"):
        kind = "mmf"
    if isinstance(error, SystemExit):
        message = f"a library called sys.exit({error.code!r})"
    elif not issubclass(error_class, (MmfwError, StopRequested, DivergedError)):
        message = f"{error_class.__name__}: {message}" if message else error_class.__name__
    hint = error.hint if isinstance(error, MmfwError) else None
    if killed_worker := _LOADER_WORKER_KILLED.search(trace):
        message = f"a DataLoader worker (pid {killed_worker[1]}) was killed (signal: {killed_worker[2]})"
        hint = "set `training.num_workers=0` to load rows without DataLoader workers" if kind == "killed" else None
    if kind == "host_oom" and _SHARED_MEMORY.search(trace):
        hint = SHM_HINT
    if kind == "killed" and _LOST_RANK.search(message):
        message = f"another process of this training exited or does not respond ({message})"
    if _HUB_IS_OFFLINE in trace:
        kind = "network"
        if os.environ.get("HF_HUB_OFFLINE") == "1":
            hint = "set HF_HUB_OFFLINE=0 to allow downloads, unless the preset sets offline: true"
    if kind == "disk" and _TOO_MANY_FILES.search(f"{message}\n{error.__cause__ or ''}"):
        hint = "reduce training.num_workers to open fewer files (`ulimit -Hn` shows the limit)"
    if isinstance(error, OSError) and error.errno in (errno.EFBIG, errno.EBADF, errno.EINVAL, errno.EIO):
        hint = to_mmfw_error(error).hint
    locations = [f"{path.name}:{line}" for path, line, _ in frames if {"mmf", "mmf_win"} & set(path.parts)]
    details = {"text": message, **error.details} if isinstance(error, DivergedError) else None
    location = locations[-1] if locations else None
    return AttemptOutcome(kind, message, hint, location, bool(_VALIDATION_FRAME.search(trace)), details)


def _error_class_and_message(error: BaseException) -> tuple[type[BaseException], str]:
    """Return the class of an error and its message on one line, also if another process forwarded it."""
    if not _FORWARDED_TRACEBACK.search(str(error)):
        return type(error), " ".join(str(error).split())
    lines = [line for line in str(error).splitlines() if line.strip()]
    # A DataLoader re-raises the class of its worker's error if possible; messages may have several lines.
    is_same = str(error).startswith(f"Caught {type(error).__name__} ")
    name = rf"([\w.]+\.)?{type(error).__name__}" if is_same else r"[A-Za-z_][\w.]*"
    starts = [n for n, line in enumerate(lines) if re.match(rf"{name}(: |$)", line)]
    last = " ".join(" ".join(lines[starts[-1] :] if starts else lines[-1:]).split())
    name, _, message = last.partition(": ")
    if is_same:
        return type(error), message
    module, _, name = name.rpartition(".")
    error_class = getattr(sys.modules.get(module or "builtins"), name, None)
    # For a class that is not imported here, only the name is known.
    return error_class if isinstance(error_class, type) else type(name, (RuntimeError,), {}), message


def _possible_outcomes(
    error: BaseException, error_class: type[BaseException], message: str, trace: str, frames: set[tuple[str, str]]
) -> Iterator[OutcomeKind]:
    """Yield the outcomes that match an error, most certain first.

    Args:
        error: The exception that was caught.
        error_class: Its class, or that of the forwarded error.
        message: Its message, or that of the forwarded error.
        trace: The whole traceback with causes and contexts.
        frames: File names and functions of the traceback.

    Yields:
        Outcome kinds; the first one decides.
    """
    yield from (kind for kind, error_type in _KIND_BY_CLASS if issubclass(error_class, error_type))
    # Not imported here: torch may be what failed to import.
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(error_class, torch.cuda.OutOfMemoryError):
        yield "cuda_oom"
    error_number = getattr(error, "errno", None)
    no_paging_file = getattr(error, "winerror", None) == _OUT_OF_PAGING_FILE
    if issubclass(error_class, MemoryError) or error_number == errno.ENOMEM or no_paging_file:
        yield "host_oom"
    if killed_worker := _LOADER_WORKER_KILLED.search(trace):
        yield "host_oom" if killed_worker[2] in _OUT_OF_MEMORY_SIGNALS else "killed"
    # DataLoader workers share data in /dev/shm.
    if error_number in DISK_FULL_ERRNOS and "SemLock(" in trace:
        yield "host_oom"
    if error_number in DISK_FULL_ERRNOS | _NO_HANDLE_ERRNOS:
        yield "disk"
    # Libraries are mapped into memory, which `ulimit -v` may limit.
    if issubclass(error_class, ImportError):
        yield "host_oom" if "failed to map segment" in message else "mmf"
    if issubclass(error_class, RuntimeError) or (issubclass(error_class, OSError) and error_number is None):
        yield from (kind for kind, pattern in _KIND_BY_MESSAGE if pattern.search(f"{message}\n{error.__cause__ or ''}"))
    if ("checkpoint.py", "_load") in frames:
        yield "checkpoint"
    yield from _outcomes_by_origin(error, error_class, frames)


def _outcomes_by_origin(
    error: BaseException, error_class: type[BaseException], frames: set[tuple[str, str]]
) -> Iterator[OutcomeKind]:
    """Yield the outcomes that match the library, the file or the part of MMF where an error arose."""
    mmf = sys.modules.get("mmf")
    libraries = {error_type.__module__.partition(".")[0] for error_type in error_class.__mro__}
    if libraries & {"requests", "urllib3", "httpx", "socket"} or error_class.__name__ == "URLError":
        yield "network"
    file = getattr(error, "filename", None)
    if mmf is not None and file and Path(str(file)).is_relative_to(Path(str(mmf.__file__)).parent):
        yield "mmf"
    if any(file == "configuration.py" for file, _ in frames):
        yield "config"
    if issubclass(error_class, OSError) or any(file.endswith("_database.py") for file, _ in frames):
        yield "data"
