"""Processors and their quota, and NVIDIA's GPUs with a fake NVML."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mmf_win import machine
from mmf_win.machine import available_cpus, cpu_quota, limit_threads
from tests.worlds.fake_nvml import SHARED_GPU, FakeNvml


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize(
    ("visible", "free"),
    [
        (None, [1, 2]),
        ("1", [2]),
        ("1, 0", [2, 1]),
        ("GPU-8f2a", [14]),
        (f"0,{SHARED_GPU},1", [1, 2]),
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
    assert machine.free_gpu_memory() == [gib << 30 for gib in free]


@pytest.mark.usefixtures("nvml")
def test_all_gpus_are_listed_fake_nvml(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    nvml.free_bytes[1] = 0  # says nothing about its memory
    assert machine.installed_gpus() == [
        {"name": "NVIDIA 0", "memory": 24 << 30, "driver": "570.86"},
        {"name": "NVIDIA 1", "memory": 0, "driver": "570.86"},
    ]


@pytest.mark.parametrize(("visible", "handle"), [("1,0", 1), ("GPU-8f2a", "GPU-8f2a")], ids=str)
def test_the_first_gpu_that_may_be_used_is_watched_fake_nvml(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str, handle: object
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    figures = machine.iter_gpu_usage()
    assert next(figures) == "GPU 87 %, 10.0 GiB of 24.0 GiB"
    assert nvml.utilization_queries == [handle]
    next(figures)
    assert len(nvml.utilization_queries) == 1, "the GPU is not asked all the time"


def test_a_gpu_that_is_not_there_or_says_nothing_is_passed_over_fake_nvml(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert list(machine.iter_gpu_usage()) == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    nvml.reports_utilization = False
    assert list(machine.iter_gpu_usage()) == []
    assert len(nvml.utilization_queries) == 1


def test_without_nvidia_ml_py_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert list(machine.iter_gpu_usage()) == []
    assert machine.free_gpu_memory() == machine.installed_gpus() == []


def test_without_a_driver_there_are_no_gpus() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert machine.free_gpu_memory() == machine.installed_gpus() == []
    else:
        pytest.skip("there is a driver")


def control_groups(root: Path, groups: str, files: Mapping[str, str]) -> Path:
    """Write a tree in which a process is in ``groups``, and return its root."""
    written = {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}
    for name, text in written.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


_V1 = "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "cut off"}, math.inf),
        ("0::/\n", {}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n", "a/cpu.max": "400000 100000\n"}, 1.5),
        ("0::/a/b\n", {"other/cpu.max": "100000 100000\n"}, math.inf),
        (_V1, {"cpu/docker/1/cpu.cfs_quota_us": "300000", "cpu/docker/1/cpu.cfs_period_us": "100000"}, 3),
        (_V1, {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        (_V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        (_V1, {"memory/cpu.max": "100000 100000"}, math.inf),
    ],
)
def test_the_smallest_cpu_quota_of_a_control_group_and_those_above_it_counts(
    tmp_path: Path, groups: str, files: dict[str, str], quota: float
) -> None:
    assert cpu_quota(control_groups(tmp_path, groups, files)) == quota


@pytest.mark.parametrize(("quota", "threads"), [("100000", 1), ("50000", 1), ("150000", 2), ("900000", 8)])
def test_no_more_processors_are_used_than_the_cpu_quota_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, threads: int
) -> None:
    for name in ("cpu_count", "process_cpu_count"):
        monkeypatch.setattr(os, name, lambda: 8, raising=False)
    assert available_cpus(tmp_path) == 8
    root = control_groups(tmp_path, "0::/\n", {"cpu.max": f"{quota} 100000"})
    assert available_cpus(root) == threads


def test_libraries_start_no_more_threads_than_the_cpu_quota_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # so that it is removed afterwards
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads(1, tmp_path)
    assert "OMP_NUM_THREADS" not in os.environ
    root = control_groups(tmp_path, "0::/\n", {"cpu.max": "50000 100000"})
    limit_threads(1, root)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    limit_threads(1, root)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads(2, tmp_path)
    assert os.environ["OMP_NUM_THREADS"] == str(max(1, available_cpus(tmp_path) // 2))
