"""Outcomes of errors, which determine the exit code."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from mmf_win.errors import CheckpointError, DatasetError, MmfEnvironmentError, UnreadableImageError
from mmf_win.protocol import AttemptOutcome, OutcomeKind
from mmf_win.worker.outcome import StopRequested, UntrustedCheckpointError, classify_exception
from tests.worlds.tools import is_wine


def raise_and_catch(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return raised


def with_attributes(error: BaseException, **attributes: object) -> BaseException:
    """Set attributes of an error and return it."""
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


# Messages of RuntimeErrors that torch raises.
TORCH_MESSAGES = [
    ("[enforce fail] DefaultCPUAllocator: not enough memory: you tried", "host_oom"),
    ("CUDA out of memory. Tried to allocate 2.00 GiB", "cuda_oom"),
    ("CUDA error: out of memory", "cuda_oom"),
    ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cuda_oom"),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuda_oom"),
    ("DataLoader worker (pid 7) is killed by signal: Bus error.", "host_oom"),
    ("unable to mmap 4096 bytes from file </torch_7_8_9>: Cannot allocate memory (12)", "host_oom"),
    ("unable to write to file </torch_7_8_9>: No space left on device (28)", "host_oom"),
    ("can't start new thread", "host_oom"),  # message of Python
    ("received 0 items of ancdata", "disk"),
    ("PytorchStreamWriter failed writing file data/1: file write failed", "disk"),
    ("Function 'MulBackward0' returned nan values in its 0th output.", "nan"),
    ("NaN occurred in the following loss(es)", "nan"),
]
LOADER_OUT_OF_MEMORY = "Caught OSError in DataLoader worker process 0.\n[Errno 12] Cannot allocate memory"
# OSError sets the number on Windows only.
PAGING_FILE = with_attributes(OSError("The paging file is too small. Error loading cudnn64_9.dll"), winerror=1455)
LOADER_KILLED = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
LOADER_EXITED = "DataLoader worker (pid(s) 7, 8) exited unexpectedly"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (StopRequested("stopped at update 3"), "interrupted"),
        (KeyboardInterrupt(), "interrupted"),
        (MemoryError(), "host_oom"),
        *((RuntimeError(message), outcome) for message, outcome in TORCH_MESSAGES),
        (PAGING_FILE, "host_oom"),
        (LOADER_KILLED, "host_oom"),
        (with_attributes(RuntimeError(LOADER_EXITED), __cause__=LOADER_KILLED), "host_oom"),
        (with_attributes(KeyError("the interrupted operation"), __context__=LOADER_KILLED), "host_oom"),
        (with_attributes(RuntimeError(LOADER_EXITED), __cause__=RuntimeError("CUDA out of memory. Tried")), "cuda_oom"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "host_oom"),
        (OSError(LOADER_OUT_OF_MEMORY), "host_oom"),
        (OSError(errno.EMFILE, "Too many open files", "img/1.png"), "disk"),
        (OSError(errno.EFBIG, "File too large", "current.ckpt"), "disk"),
        (OSError(errno.ENOSPC, "No space left on device", "current.ckpt"), "disk"),
        (FileNotFoundError(errno.ENOENT, "No such file", "img/1.png"), "data"),
        (ImportError("no module named x"), "mmf"),
        (ImportError("libtiff.so.6: failed to map segment from shared object"), "host_oom"),
        (urllib.error.URLError("Name or service not known"), "network"),
        (DatasetError("x"), "data"),
        (CheckpointError("x"), "checkpoint"),
        (UntrustedCheckpointError("x"), "untrusted"),
        (MmfEnvironmentError("x"), "mmf"),
        (ValueError("a banana is no nan-o-thing"), "internal"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_each_error_has_its_outcome(error: BaseException, outcome: OutcomeKind) -> None:
    assert classify_exception(raise_and_catch(error)).kind == outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(OSError("[WinError 126] The specified module could not be found"), "mmf"), (PAGING_FILE, "host_oom")],
)
def test_errors_before_mmf_is_imported_are_of_the_environment_except_lack_of_memory(
    error: BaseException, outcome: OutcomeKind
) -> None:
    assert classify_exception(raise_and_catch(error), is_prepared=False).kind == outcome


@pytest.mark.parametrize(
    ("file", "function", "validating"),
    [
        ("mmf/trainers/core/training_loop.py", "training_loop", False),
        ("mmf/trainers/core/evaluation_loop.py", "evaluation_loop", True),
        ("mmf/trainers/base_trainer.py", "evaluate", True),
        ("mine/model.py", "evaluate", False),
        ("mmf/models/mine.py", "evaluate", False),
    ],
)
def test_only_frames_of_mmf_mark_a_validation(tmp_path: Path, file: str, function: str, validating: bool) -> None:
    namespace: dict[str, Any] = {}
    code = f"def {function}():\n    raise RuntimeError('CUDA out of memory')"
    exec(compile(code, tmp_path / file, "exec"), namespace)
    with pytest.raises(RuntimeError) as error:
        namespace[function]()
    assert classify_exception(error.value).during_validation == validating


def test_message_is_one_line_with_the_type_of_the_error() -> None:
    classified = classify_exception(raise_and_catch(ValueError("one\n  two")))
    assert classified.message == "ValueError: one two"


@pytest.mark.parametrize("code", [None, 0, 3, "no license"])
def test_sys_exit_of_a_library_is_reported_with_its_code(code: int | str | None) -> None:
    classified = classify_exception(raise_and_catch(SystemExit(code)))
    assert (classified.kind, classified.message) == ("internal", f"a library called sys.exit({code!r})")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (UnreadableImageError, "data"),
        (MemoryError, "host_oom"),
        (RuntimeError, "cuda_oom"),
        (KeyError, "internal"),
        (OSError, "cuda_oom"),
    ],
)
def test_error_of_a_dataloader_worker_is_reported_in_one_line(kind: type[Exception], outcome: OutcomeKind) -> None:
    from torch._utils import ExceptionWrapper

    try:
        raise kind("CUDA out of memory.\nseen: 3 rows")
    except kind:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 1")
    with pytest.raises(kind) as raised:
        wrapped.reraise()
    classified = classify_exception(raised.value)
    assert classified.kind == outcome
    assert "Caught" not in classified.message and "Traceback" not in classified.message
    if kind is UnreadableImageError:
        assert (classified.message, classified.hint) == (
            "CUDA out of memory. seen: 3 rows",
            UnreadableImageError("x").hint,
        )
    elif kind is not KeyError:  # KeyError shows the repr of its message
        assert "CUDA out of memory. seen: 3 rows" in classified.message


def _run_rank(number: int, folder: str) -> None:
    """Run one of two ranks; the second exits, and the first saves the outcome of its error."""
    import torch

    rendezvous = (Path(folder) / "rendezvous").as_uri()
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=number, world_size=2)
    torch.distributed.all_reduce(torch.ones(1))
    if number == 1:
        os._exit(0)
    try:
        torch.distributed.all_reduce(torch.ones(1))
    except RuntimeError as error:
        classify_exception(error).save(Path(folder) / "end.json")
        os._exit(0)


@pytest.mark.torch
@pytest.mark.skipif(is_wine(), reason="gloo dies in its first all_reduce under Wine, not on Windows")
def test_rank_reports_that_another_rank_exited(tmp_path: Path) -> None:
    from torch.multiprocessing import spawn

    spawn(_run_rank, (str(tmp_path),), nprocs=2)  # type: ignore[no-untyped-call]
    classified = AttemptOutcome.load(tmp_path / "end.json")
    assert classified is not None and classified.kind == "killed"
    assert "another process of this training exited" in classified.message


@pytest.mark.torch
def test_out_of_memory_error_of_torch_is_recognized() -> None:
    import torch

    assert classify_exception(raise_and_catch(torch.cuda.OutOfMemoryError("any words"))).kind == "cuda_oom"


_DOWNLOAD_FROM_HUB = """
import sys
from transformers import AutoConfig
from mmf_win.worker.outcome import classify_exception
try:
    AutoConfig.from_pretrained("owner/tiny")
except OSError as error:
    outcome = classify_exception(error)
    print(outcome.kind, outcome.hint)
"""


@pytest.mark.torch
def test_forbidden_download_names_the_variable(user_dir: Path) -> None:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(user_dir), "PYTHONUTF8": "1"}
    command = [sys.executable, "-c", _DOWNLOAD_FROM_HUB]
    process = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, env=environment)
    assert process.stdout.startswith("network set HF_HUB_OFFLINE=0 ")


@pytest.mark.parametrize(
    "message",
    [
        "unable to write to file </torch_1_2>: No space left on device (28)",
        (
            "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers "
            "are out of shared memory."
        ),
    ],
)
def test_full_shared_memory_has_a_hint(message: str) -> None:
    classified = classify_exception(RuntimeError(message))
    assert (
        classified.kind == "host_oom"
        and "--shm-size" in str(classified.hint)
        and "num_workers=0" in str(classified.hint)
    )
