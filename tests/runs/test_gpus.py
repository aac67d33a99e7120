"""What NVIDIA's driver is asked, with a fake NVML in its place."""

from __future__ import annotations

import sys

import pytest

from mmf_win.runs import gpus
from tests.worlds.fake_nvml import SHARED, FakeNvml


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize(
    ("visible", "free"),
    [
        (None, [1, 2]),
        ("1", [2]),
        ("1, 0", [2, 1]),
        ("GPU-8f2a", [14]),
        (f"0,{SHARED},1", [1, 2]),
        ("", []),
        ("-1", []),
        ("1,7,0", [2]),
    ],
    ids=str,
)
def test_free_memory_is_that_of_each_gpu_that_a_worker_may_use_fake_nvml(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, free: list[int]
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.free_memory() == [gib << 30 for gib in free]


@pytest.mark.usefixtures("nvml")
def test_all_gpus_are_listed_fake_nvml(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    nvml.free[1] = 0  # says nothing about its memory
    assert gpus.installed() == [
        {"name": "NVIDIA 0", "memory": 24 << 30, "driver": "570.86"},
        {"name": "NVIDIA 1", "memory": 0, "driver": "570.86"},
    ]


@pytest.mark.parametrize(("visible", "handle"), [("1,0", 1), ("GPU-8f2a", "GPU-8f2a")], ids=str)
def test_the_first_gpu_that_may_be_used_is_watched_fake_nvml(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str, handle: object
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    figures = gpus.figures()
    assert next(figures) == "GPU 87 %, 10.0 GiB of 24.0 GiB"
    assert nvml.asked == [handle]
    next(figures)
    assert len(nvml.asked) == 1, "the GPU is not asked all the time"


def test_a_gpu_that_is_not_there_or_says_nothing_is_passed_over_fake_nvml(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert list(gpus.figures()) == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    nvml.knows = False
    assert list(gpus.figures()) == []
    assert len(nvml.asked) == 1


def test_without_nvidia_ml_py_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert list(gpus.figures()) == []
    assert gpus.free_memory() == gpus.installed() == []


def test_without_a_driver_there_are_no_gpus() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert gpus.free_memory() == gpus.installed() == []
    else:
        pytest.skip("there is a driver")
