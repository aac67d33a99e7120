"""What each way to fail means for the user: its class, and so its exit code."""

from __future__ import annotations

import errno
import urllib.error
from pathlib import Path

import pytest

from mmf_win.bridge.outcome import StopRequested, WeightsMissing, classify
from mmf_win.errors import DatasetError, MmfError
from mmf_win.protocol import Outcome, Request
from mmf_win.runs import launch
from mmf_win.runs.folder import Run
from mmf_win.supervise import Ended


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (StopRequested("stopped at update 3"), "interrupted"),
        (KeyboardInterrupt(), "interrupted"),
        (MemoryError(), "host_oom"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried"), "host_oom"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), "host_oom"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "cuda_oom"),
        (OSError(errno.ENOSPC, "No space left on device", "current.ckpt"), "disk"),
        (RuntimeError("PytorchStreamWriter failed writing file data/1: file write failed"), "disk"),
        (RuntimeError("Function 'MulBackward0' returned nan values in its 0th output."), "nan"),
        (RuntimeError("NaN occurred in the following loss(es)"), "nan"),
        (FileNotFoundError(errno.ENOENT, "No such file", "img/1.png"), "data"),
        (ImportError("no module named x"), "mmf"),
        (urllib.error.URLError("Name or service not known"), "network"),
        (DatasetError("x"), "data"),
        (WeightsMissing("x"), "checkpoint"),
        (MmfError("x"), "mmf"),
        (ValueError("a banana is no nan-o-thing"), "internal"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_class_of_an_error(error: BaseException, outcome: Outcome) -> None:
    assert classify(caught(error)).outcome == outcome


def test_whatever_fails_before_mmf_is_imported_is_the_environments_fault() -> None:
    broken_torch = OSError("[WinError 126] The specified module could not be found")
    assert classify(caught(broken_torch), prepared=False).outcome == "mmf"


def test_an_error_is_said_in_one_line_with_its_type() -> None:
    end = classify(caught(ValueError("one\n  two")))
    assert end.message == "ValueError: one two"


@pytest.mark.torch
def test_torchs_own_out_of_memory_error_is_known() -> None:
    import torch

    assert classify(caught(torch.cuda.OutOfMemoryError("any words"))).outcome == "cuda_oom"


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ("interrupted", 130),
        ("cuda_oom", 7),
        ("host_oom", 5),
        ("disk", 5),
        ("nan", 7),
        ("data", 3),
        ("checkpoint", 3),
        ("config", 2),
        ("mmf", 6),
        ("network", 6),
        ("busy", 2),
        ("internal", 7),
    ],
)
def test_each_ending_has_its_exit_code_and_names_the_log(tmp_path: Path, outcome: Outcome, code: int) -> None:
    request = Request("train", "mmbt", "mmf", str(tmp_path), str(tmp_path / "1"))
    error = launch._as_error(launch.Exit(outcome, "why"), Run(tmp_path), request)
    assert error.exit_code == code
    assert str(error) == "why"
    assert error.hint is not None and ("log.txt" in error.hint or "--resume last" in error.hint)


def test_an_error_of_no_known_class_names_its_place(tmp_path: Path) -> None:
    request = Request("train", "mmbt", "mmf", str(tmp_path), str(tmp_path / "1"))
    end = launch.Exit("internal", "ValueError: x", where="base_trainer.py:253")
    assert str(launch._as_error(end, Run(tmp_path), request)) == "ValueError: x (at base_trainer.py:253)"


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        (Ended(-9, stop_requested=False, killed=False), "host_oom"),
        (Ended(-9, stop_requested=True, killed=True), "interrupted"),
        (Ended(1, stop_requested=False, killed=False), "internal"),
    ],
)
def test_a_worker_that_could_not_say_how_it_ended(tmp_path: Path, ended: Ended, outcome: Outcome) -> None:
    request = Request("train", "mmbt", "mmf", str(tmp_path), str(tmp_path / "1"))
    request.attempt.path.mkdir()
    assert launch._exit_of(request, ended).outcome == outcome
    assert Run(tmp_path).exit() is not None, "the run remembers it"
