"""The outcome of an attempt, judged by the exception that ended it."""

from __future__ import annotations

import errno
import re
import sys
import traceback
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from mmf_win.errors import CheckpointError, DataError, MmfwError, ResourceError, UsageError
from mmf_win.protocol import Exit, Outcome, Phase

# WinError 1455: the paging file is too small (https://learn.microsoft.com/windows/win32/debug/system-error-codes)
_OUT_OF_PAGING_FILE = 1455
# What torch says in a plain RuntimeError, and in the text of another process's error.
_SAID: tuple[tuple[Outcome, re.Pattern[str]], ...] = (
    ("cuda_oom", re.compile(r"CUDA( error:)? out of memory|CU(BLAS|DNN|SPARSE)_STATUS_ALLOC_FAILED")),
    ("host_oom", re.compile(r"not enough memory|can't allocate memory|Cannot allocate memory")),
    ("host_oom", re.compile(r"killed by signal: (Killed|Bus error)")),
    ("host_oom", re.compile(r"shared memory|</torch_\d|/dev/shm/")),  # which ends as a full disk does
    ("disk", re.compile(r"PytorchStreamWriter failed|No space left on device")),
    ("nan", re.compile(r"(?i)\bnan\b")),
)
_LOADER_WORKER_KILLED = re.compile(r"^DataLoader worker .* is killed by signal: (Killed|Bus error)")
# What a DataLoader's worker raised arrives as the same class, with its traceback as the message.
_LOADER_WORKER = re.compile(r"^Caught \w+ in DataLoader worker.*\nOriginal Traceback")
# torch.multiprocessing.spawn passes a rank's error on as the text of its traceback, the error itself last.
_RANK = re.compile(r"-- Process \d+ terminated with the following error:\n")
_OF_RANK: tuple[tuple[Outcome, re.Pattern[str]], ...] = (
    ("interrupted", re.compile(r"^(\S+\.)?(StopRequested|KeyboardInterrupt)\b")),
    ("nan", re.compile(r"^(\S+\.)?Diverged\b")),
    ("untrusted", re.compile(r"^(\S+\.)?UntrustedCheckpoint\b")),
    ("checkpoint", re.compile(r"^(\S+\.)?(WeightsMissing|CheckpointError)\b")),
    ("host_oom", re.compile(r"^MemoryError\b")),
    ("mmf", re.compile(r"^(ImportError|ModuleNotFoundError)\b")),
    *_SAID,
    ("data", re.compile(r"^(\S+\.)?(DatasetError|UnreadableImage)\b")),
    ("data", re.compile(r"^(FileNotFoundError|PermissionError|OSError|(\S+\.)?UnidentifiedImageError)\b")),
)
# MMF's functions, of either version, that mark a phase; a validation happens during training.
_PHASES: tuple[tuple[Phase, frozenset[str]], ...] = (
    ("val", frozenset({"evaluate", "evaluation_loop"})),
    ("predict", frozenset({"predict", "prediction_loop"})),
    ("train", frozenset({"train", "training_loop"})),
)


class StopRequested(Exception):
    """The parent asked for a stop, and the run is saved."""


class Diverged(Exception):
    """A loss or a weight is no longer finite."""


class WeightsMissing(CheckpointError):
    """A checkpoint leaves weights of the model unset."""


class UntrustedCheckpoint(CheckpointError):
    """A checkpoint holds classes, and to load them could run any code."""


_OF_CLASS: tuple[tuple[Outcome, type[BaseException]], ...] = (
    ("interrupted", StopRequested),
    ("interrupted", KeyboardInterrupt),
    ("nan", Diverged),
    ("untrusted", UntrustedCheckpoint),
    ("checkpoint", CheckpointError),
    ("data", DataError),
    ("disk", ResourceError),
    ("config", UsageError),
    ("mmf", MmfwError),
)


def classify(error: BaseException, *, prepared: bool = True) -> Exit:
    """The outcome that ``error`` means, judged by its type, its message and where in MMF it arose.

    Args:
        error: what left MMF.
        prepared: MMF could be imported; before that, all but a lack of memory is the environment's fault.
    """
    by_class = (outcome for outcome, kind in _OF_CLASS if isinstance(error, kind))
    otherwise: Outcome = "internal" if prepared else "host_oom" if _lacks_memory(error) else "mmf"
    outcome = next(chain(by_class, _outcomes(error) if prepared else ()), otherwise)
    hint = error.hint if isinstance(error, MmfwError) else None
    return Exit(outcome, _one_line(error), hint, _innermost(error), _phase(error))


def _outcomes(error: BaseException) -> Iterator[Outcome]:
    """The outcomes that an error of torch, MMF or Python may mean, the most certain first."""
    if _RANK.search(str(error)):
        yield from (outcome for outcome, said in _OF_RANK if said.search(_one_line(error)))
    if getattr(error, "signal_name", None) == "SIGKILL":  # a rank that could not say anything
        yield "killed"
    # torch may be the very thing that cannot be imported.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
        yield "cuda_oom"
    if _lacks_memory(error) or _lost_a_loader_worker(error):
        yield "host_oom"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        yield "disk"
    if isinstance(error, ImportError):
        yield "mmf"
    # What a DataLoader's worker raised arrives as the same class with the message alone; how a worker died,
    # as the cause of an error that only says that it did.
    if isinstance(error, RuntimeError) or (isinstance(error, OSError) and error.errno is None):
        words = f"{error}\n{error.__cause__ or ''}"
        yield from (outcome for outcome, said in _SAID if said.search(words))
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


def _lacks_memory(error: BaseException) -> bool:
    """Whether the computer's memory ran out, as the error itself says."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM or getattr(error, "winerror", None) == _OUT_OF_PAGING_FILE
    return isinstance(error, MemoryError)


def _lost_a_loader_worker(error: BaseException) -> bool:
    """Whether the system killed a DataLoader's worker, as it does when memory or /dev/shm run out.

    torch raises this in a signal handler; the interrupted code may then fail with another error on top of it.
    """
    below: BaseException | None = error
    while below is not None:
        if _LOADER_WORKER_KILLED.search(str(below)):
            return True
        below = below.__cause__ or below.__context__
    return False


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


def _phase(error: BaseException) -> Phase | None:
    """What was going on, judged by the functions in the traceback, also in the text of a rank's."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    functions = set(re.findall(r'^\s*File ".*", line \d+, in (\w+)$', text, re.MULTILINE))
    return next((phase for phase, names in _PHASES if functions & names), None)


def _one_line(error: BaseException) -> str:
    said = str(error)
    if _RANK.search(said) or _LOADER_WORKER.search(said):
        text = _last_error(said)
        return text.partition(": ")[2] if isinstance(error, MmfwError) else text
    text = " ".join(said.split())
    if isinstance(error, (MmfwError, StopRequested, Diverged)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _last_error(traceback_text: str) -> str:
    """The error that a traceback ends with, on one line."""
    lines = [line for line in traceback_text.splitlines() if line.strip()]
    starts = [n for n, line in enumerate(lines) if re.match(r"[A-Za-z_][\w.]*(: |$)", line)]
    return " ".join(" ".join(lines[starts[-1] :] if starts else lines[-1:]).split())


def _innermost(error: BaseException) -> str | None:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if {"mmf", "mmf_win"} & set(Path(frame.filename).parts):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return None
