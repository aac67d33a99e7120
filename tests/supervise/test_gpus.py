"""What is asked of NVIDIA's driver, with a fake nvidia-smi in its place."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mmf_win.supervise import gpus

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows would need an .exe for a fake nvidia-smi"
)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Path]:
    """Puts a program in place that prints something and ends with a code; the file gets its arguments."""
    asked = tmp_path / "asked"

    def install(prints: str, code: int = 0) -> Path:
        program = tmp_path / "nvidia-smi"
        script = f"#!/bin/sh\nprintf '%s\\n' \"$@\" >'{asked}'\nprintf '{prints}'\nexit {code}\n"
        program.write_text(script, encoding="utf-8")
        program.chmod(0o755)
        return asked

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return install


def test_free_memory_is_that_of_each_gpu(driver: Callable[..., Path]) -> None:
    driver("1024\\n[N/A]\\n2048\\n")
    assert gpus.free_memory() == [1 << 30, 2 << 30]


def test_only_gpus_that_a_worker_would_see_are_asked(
    driver: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = driver("1024\\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert gpus.free_memory() == [1 << 30]
    assert "--id=2,3" in asked.read_text(encoding="utf-8").splitlines()
    for none in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert gpus.free_memory() == []


def test_a_driver_in_trouble_says_nothing(driver: Callable[..., Path]) -> None:
    driver("1024\\n", 9)
    assert gpus.free_memory() == []
    driver("NVIDIA-SMI has failed because it could not communicate with the driver\\n")
    assert gpus.free_memory() == []


def test_without_a_driver_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.free_memory() == []
