"""CPUs and their quota, and NVIDIA GPUs with a fake NVML."""

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
def test_free_memory_is_that_of_visible_gpus_with_fake_nvml(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, free: list[int]
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.free_gpu_memory() == [gib << 30 for gib in free]


@pytest.mark.usefixtures("nvml")
def test_all_gpus_are_listed_with_fake_nvml(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    nvml.free_bytes[1] = 0  # does not report its memory
    assert machine.installed_gpus() == [
        {"name": "NVIDIA 0", "memory": 24 << 30, "driver": "570.86"},
        {"name": "NVIDIA 1", "memory": 0, "driver": "570.86"},
    ]


@pytest.mark.parametrize(("visible", "handle"), [("1,0", 1), ("GPU-8f2a", "GPU-8f2a")], ids=str)
def test_usage_is_that_of_first_visible_gpu_with_fake_nvml(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str, handle: object
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    usage = machine.iter_gpu_usage()
    assert next(usage) == "GPU 87 %, 10.0 GiB of 24.0 GiB"
    assert nvml.utilization_queries == [handle]
    next(usage)
    assert len(nvml.utilization_queries) == 1, "the GPU must not be queried each time"


def test_missing_or_silent_gpu_has_no_usage_with_fake_nvml(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert list(machine.iter_gpu_usage()) == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    nvml.reports_utilization = False
    assert list(machine.iter_gpu_usage()) == []
    assert len(nvml.utilization_queries) == 1


def test_no_gpus_are_listed_without_nvidia_ml_py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert list(machine.iter_gpu_usage()) == []
    assert machine.free_gpu_memory() == machine.installed_gpus() == []


def test_no_gpus_are_listed_without_a_driver() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert machine.free_gpu_memory() == machine.installed_gpus() == []
    else:
        pytest.skip("this machine has an NVIDIA GPU")


def write_control_groups(root: Path, groups: str, files: Mapping[str, str]) -> Path:
    """Write the files of a process in the control groups ``groups``; return their root."""
    contents = {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


_CGROUPS_V1 = "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n0::/\n"


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
        (_CGROUPS_V1, {"cpu/docker/1/cpu.cfs_quota_us": "300000", "cpu/docker/1/cpu.cfs_period_us": "100000"}, 3),
        (_CGROUPS_V1, {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        (_CGROUPS_V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        (_CGROUPS_V1, {"memory/cpu.max": "100000 100000"}, math.inf),
    ],
)
def test_cpu_quota_is_the_smallest_of_control_group_and_its_parents(
    tmp_path: Path, groups: str, files: dict[str, str], quota: float
) -> None:
    assert cpu_quota(write_control_groups(tmp_path, groups, files)) == quota


@pytest.mark.parametrize(("quota", "threads"), [("100000", 1), ("50000", 1), ("150000", 2), ("900000", 8)])
def test_available_cpus_are_limited_by_cpu_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, threads: int
) -> None:
    for name in ("cpu_count", "process_cpu_count"):
        monkeypatch.setattr(os, name, lambda: 8, raising=False)
    assert available_cpus(tmp_path) == 8
    root = write_control_groups(tmp_path, "0::/\n", {"cpu.max": f"{quota} 100000"})
    assert available_cpus(root) == threads


def test_threads_of_libraries_are_limited_by_cpu_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # monkeypatch restores the variable after the test
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads(1, tmp_path)
    assert "OMP_NUM_THREADS" not in os.environ
    root = write_control_groups(tmp_path, "0::/\n", {"cpu.max": "50000 100000"})
    limit_threads(1, root)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    limit_threads(1, root)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads(2, tmp_path)
    assert os.environ["OMP_NUM_THREADS"] == str(max(1, available_cpus(tmp_path) // 2))
