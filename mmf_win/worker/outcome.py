"""The outcome of an attempt, judged by the exception that ended it."""

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
# What torch says in a plain RuntimeError, and in the text of another process's error.
_OUTCOME_BY_MESSAGE: tuple[tuple[OutcomeKind, re.Pattern[str]], ...] = (
    ("cuda_oom", re.compile(r"CUDA( error:)? out of memory|CU(BLAS|DNN|SPARSE)_STATUS_ALLOC_FAILED")),
    ("disk", _TOO_MANY_FILES),
    ("host_oom", re.compile(r"not enough memory|[Cc]an('|no)t allocate memory|can't start new thread")),
    ("host_oom", _SHARED_MEMORY),  # which ends as a full disk does
    ("disk", re.compile(r"PytorchStreamWriter failed|No space left on device")),
    ("killed", _LOST_RANK),
    ("nan", re.compile(r"(?i)\bnan\b")),
)
# torch raises this in a signal handler; the interrupted code may then fail with another error on top of it.
_LOADER_WORKER_KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([^.\n]+)\.")
# transformers, where HF_HUB_OFFLINE keeps it from downloading what it lacks
_HUB_IS_OFFLINE = "offline-mode'"
_OUT_OF_MEMORY_SIGNALS = {"Killed", "Bus error"}
# torch passes on what a DataLoader's worker raised as the text of its traceback.
_FORWARDED_TRACEBACK = re.compile(r"^Caught \w+ in DataLoader worker.*\nOriginal Traceback")
_FRAME = re.compile(r'^ *File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
# MMF's own loop over the validation set, of either version; a user's model may have methods of these names.
_VALIDATION_FRAME = re.compile(
    r'^ *File ".*[\\/]mmf[\\/]trainers[\\/].*", line \d+, in (evaluate|evaluation_loop)$', re.MULTILINE
)


class StopRequested(Exception):
    """The parent asked for a stop, and the run is saved."""


class ChecksFinished(Exception):
    """The checks before training are done, and there is none to follow."""


class DivergedError(Exception):
    """A loss, the gradient or a weight is not finite after ``update``; ``place`` says what is known."""

    def __init__(self, message: str, update: int, quantity: str, **details: Any) -> None:
        super().__init__(message)
        self.details: dict[str, Any] = {"update": update, "quantity": quantity, **details}


class UntrustedCheckpointError(CheckpointError):
    """A checkpoint holds classes, and to load them could run any code."""


_OUTCOME_BY_CLASS: tuple[tuple[OutcomeKind, type[BaseException]], ...] = (
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
    """The outcome that ``error`` means, judged by its type, its message and where in MMF it arose.

    Until MMF is ``prepared`` and can be imported, all but a lack of memory or files means ``mmf``.
    """
    kind, message = _error_class_and_message(error)
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    passed_on = str(error) if _FORWARDED_TRACEBACK.search(str(error)) else ""
    own = "".join(traceback.format_tb(error.__traceback__)) + passed_on
    frames = [(Path(file), line, function) for file, line, function in _FRAME.findall(own)]
    places = {(path.name, function) for path, _, function in frames}
    outcome: OutcomeKind = next(_possible_outcomes(error, kind, message, trace, places), "internal")
    if not is_prepared and outcome not in ("interrupted", "host_oom", "disk"):
        outcome = "mmf"
    if isinstance(error, SystemExit):
        message = f"a library ended the worker by sys.exit({error.code!r})"
    elif not issubclass(kind, (MmfwError, StopRequested, DivergedError)):
        message = f"{kind.__name__}: {message}" if message else kind.__name__
    hint = error.hint if isinstance(error, MmfwError) else None
    if killed := _LOADER_WORKER_KILLED.search(trace):
        message = f"a DataLoader worker (pid {killed[1]}) was killed by the signal {killed[2]}"
        hint = "training.num_workers=0 loads the rows without such workers" if outcome == "killed" else None
    if outcome == "host_oom" and _SHARED_MEMORY.search(trace):
        hint = SHM_HINT
    if outcome == "killed" and _LOST_RANK.search(message):
        message = f"another process of this training has ended, or does not answer ({message})"
    if _HUB_IS_OFFLINE in trace:
        outcome = "network"
        if os.environ.get("HF_HUB_OFFLINE") == "1":
            hint = "HF_HUB_OFFLINE=0 lets transformers ask the Hub, if no preset says offline: true"
    if outcome == "disk" and _TOO_MANY_FILES.search(f"{message}\n{error.__cause__ or ''}"):
        hint = "a smaller training.num_workers=N needs fewer open files; ulimit -Hn shows the limit"
    if isinstance(error, OSError) and error.errno in (errno.EFBIG, errno.EBADF, errno.EINVAL, errno.EIO):
        hint = to_mmfw_error(error).hint
    ours = [f"{path.name}:{line}" for path, line, _ in frames if {"mmf", "mmf_win"} & set(path.parts)]
    place = {"text": message, **error.details} if isinstance(error, DivergedError) else None
    return AttemptOutcome(
        outcome, message, hint, ours[-1] if ours else None, bool(_VALIDATION_FRAME.search(trace)), place
    )


def _error_class_and_message(error: BaseException) -> tuple[type[BaseException], str]:
    """The class of an error and its message on one line, also of one that another process passed on."""
    if not _FORWARDED_TRACEBACK.search(str(error)):
        return type(error), " ".join(str(error).split())
    lines = [line for line in str(error).splitlines() if line.strip()]
    # A DataLoader raises the class that its worker raised, where it can; a message may have several lines.
    is_same = str(error).startswith(f"Caught {type(error).__name__} ")
    name = rf"([\w.]+\.)?{type(error).__name__}" if is_same else r"[A-Za-z_][\w.]*"
    starts = [n for n, line in enumerate(lines) if re.match(rf"{name}(: |$)", line)]
    last = " ".join(" ".join(lines[starts[-1] :] if starts else lines[-1:]).split())
    name, _, message = last.partition(": ")
    if is_same:
        return type(error), message
    module, _, name = name.rpartition(".")
    kind = getattr(sys.modules.get(module or "builtins"), name, None)
    # Of a class that is not known here, the name is all that there is.
    return kind if isinstance(kind, type) else type(name, (RuntimeError,), {}), message


def _possible_outcomes(
    error: BaseException, kind: type[BaseException], message: str, trace: str, frames: set[tuple[str, str]]
) -> Iterator[OutcomeKind]:
    """The outcomes that an error may mean, the most certain first.

    Its ``kind`` and ``message`` are its own, or those that another process passed on; ``places`` are the
    files and functions of ``trace``.
    """
    yield from (outcome for outcome, of in _OUTCOME_BY_CLASS if issubclass(kind, of))
    # torch may be the very thing that cannot be imported.
    torch, mmf = sys.modules.get("torch"), sys.modules.get("mmf")
    if torch is not None and issubclass(kind, torch.cuda.OutOfMemoryError):
        yield "cuda_oom"
    number = getattr(error, "errno", None)
    no_paging_file = getattr(error, "winerror", None) == _OUT_OF_PAGING_FILE
    if issubclass(kind, MemoryError) or number == errno.ENOMEM or no_paging_file:
        yield "host_oom"
    if killed := _LOADER_WORKER_KILLED.search(trace):
        yield "host_oom" if killed[2] in _OUT_OF_MEMORY_SIGNALS else "killed"
    if (
        number in DISK_FULL_ERRNOS and "SemLock(" in trace
    ):  # what a DataLoader's workers share lies in /dev/shm
        yield "host_oom"
    if number in DISK_FULL_ERRNOS | _NO_HANDLE_ERRNOS:
        yield "disk"
    # A library is mapped into memory, of which ulimit -v may leave too little.
    if issubclass(kind, ImportError):
        yield "host_oom" if "failed to map segment" in message else "mmf"
    if issubclass(kind, RuntimeError) or (issubclass(kind, OSError) and number is None):
        yield from (
            outcome
            for outcome, said in _OUTCOME_BY_MESSAGE
            if said.search(f"{message}\n{error.__cause__ or ''}")
        )
    if ("checkpoint.py", "_load") in frames:
        yield "checkpoint"
    libraries = {of.__module__.partition(".")[0] for of in kind.__mro__}
    if libraries & {"requests", "urllib3", "httpx", "socket"} or kind.__name__ == "URLError":
        yield "network"
    file = getattr(error, "filename", None)
    if mmf is not None and file and Path(str(file)).is_relative_to(Path(str(mmf.__file__)).parent):
        yield "mmf"
    if any(file == "configuration.py" for file, _ in frames):
        yield "config"
    if issubclass(kind, OSError) or any(file.endswith("_database.py") for file, _ in frames):
        yield "data"
