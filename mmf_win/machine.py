"""Resources of this machine: CPUs and their quota, memory, and NVIDIA GPUs (by NVML)."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mmf_win.console import format_size

_MAX_THREADS = 4  # more would wait for the disk, and each needs memory
_GPU_POLL_SECONDS = 2.0
_VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"


def default_thread_count() -> int:
    """Return the number of threads to use for work on files."""
    return min(available_cpus(), _MAX_THREADS)


def available_cpus(root: Path = Path("/")) -> int:
    """Return the number of CPUs that this process may use, from its affinity and its CPU quota.

    Args:
        root: The folder that contains ``proc`` and ``sys``.
    """
    usable = os.cpu_count() or 1
    if sys.platform == "linux":
        usable = len(os.sched_getaffinity(0))
    usable = getattr(os, "process_cpu_count", lambda: usable)() or 1  # Python 3.13: PYTHON_CPU_COUNT sets it
    return math.ceil(min(usable, cpu_quota(root)))


def cpu_quota(root: Path = Path("/")) -> float:
    """Return the CPU quota of this process's control groups in CPUs, or infinity without a limit.

    The smallest quota of its groups and their parents applies
    (https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/scheduler/sched-bwc.html).
    """
    quotas = [math.inf]
    with suppress(OSError, ValueError):  # only Linux has this file
        for line in os.fsdecode((root / "proc/self/cgroup").read_bytes()).splitlines():
            _, controllers, path = line.split(":", 2)
            group = Path(root, "sys/fs/cgroup", "cpu" if controllers else "", path[1:])
            if not controllers or "cpu" in controllers.split(","):
                # In a container, the group itself may be invisible, but its root is visible.
                quotas += map(_read_quota, (group, *group.parents))
    return min(quotas)


def _read_quota(group: Path) -> float:
    """Return the quota of a control group (version 1 or 2) in CPUs."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        with suppress(OSError, ValueError, ZeroDivisionError):  # without a limit, the quota is "max" or -1
            quota, period = map(int, b" ".join((group / name).read_bytes() for name in names).split())
            return quota / period if quota > 0 else math.inf
    return math.inf


def limit_threads(processes: int, root: Path = Path("/")) -> None:
    """Limit the threads that libraries start in each of ``processes`` to its share of the CPUs.

    For a single process, this is necessary only under a CPU quota, which libraries do not read.
    """
    if processes > 1 or cpu_quota(root) < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cpus(root) // processes)))


def total_memory() -> int | None:
    """Return the installed memory in bytes, or None if the system does not report it."""
    if sys.platform == "win32":
        kilobytes = ctypes.c_uint64()
        succeeded = ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
        return kilobytes.value << 10 if succeeded else None
    with suppress(ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


@dataclass(frozen=True)
class Cuda:
    """CUDA support of this machine.

    Attributes:
        newest: The newest CUDA version that the driver supports, such as ``(12, 6)``.
        capabilities: The compute capability of each GPU.
    """

    newest: tuple[int, int]
    capabilities: tuple[tuple[int, int], ...]


def survey_cuda() -> Cuda | None:
    """Return the CUDA support, or None if there is no GPU or the driver does not report it."""
    gpus = list(_iter_gpu_handles(None))
    for nvml, _ in gpus[:1]:
        with suppress(nvml.NVMLError):
            version = nvml.nvmlSystemGetCudaDriverVersion_v2()
            capabilities = (tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)) for _, handle in gpus)
            return Cuda((version // 1000, version % 1000 // 10), tuple(capabilities))
    return None


def installed_gpus() -> list[dict[str, Any]]:
    """Return name, memory and driver of each GPU; memory is in bytes, or 0 if shared with the CPU."""
    gpus = []
    for nvml, handle in _iter_gpu_handles(None):
        memory = 0
        with suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle).total
        name, driver = nvml.nvmlDeviceGetName(handle), nvml.nvmlSystemGetDriverVersion()
        gpus.append({"name": name, "memory": memory, "driver": driver})
    return gpus


def free_gpu_memory() -> list[int]:
    """Return the free bytes of each GPU that a worker may use, except GPUs that do not report it."""
    free = []
    for nvml, handle in _iter_gpu_handles(os.environ.get(_VISIBLE_DEVICES_VARIABLE)):
        with suppress(nvml.NVMLError):
            free.append(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    return free


def count_gpus() -> int:
    """Return the number of GPUs that a worker may use."""
    return sum(1 for _ in _iter_gpu_handles(os.environ.get(_VISIBLE_DEVICES_VARIABLE)))


def iter_gpu_usage() -> Iterator[str]:
    """Yield the utilization of the worker's first GPU for the live display.

    Yields:
        ``GPU 87 %, 10.2 of 24.0 GiB``, at most two seconds old, while the driver reports it.
    """
    for nvml, handle in islice(_iter_gpu_handles(os.environ.get(_VISIBLE_DEVICES_VARIABLE)), 1):
        with suppress(nvml.NVMLError):  # the driver of a virtual machine may report neither
            while True:
                utilization = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                refresh_at = time.monotonic() + _GPU_POLL_SECONDS
                while time.monotonic() < refresh_at:
                    yield f"GPU {utilization} %, {format_size(memory.used)} of {format_size(memory.total)}"


def _iter_gpu_handles(visible: str | None) -> Iterator[tuple[Any, Any]]:
    """Yield NVML and the handle of each GPU, or of those that ``visible`` lists by number or UUID.

    NVML numbers GPUs by bus position. CUDA does so only if CUDA_DEVICE_ORDER is PCI_BUS_ID; with GPUs of
    different types, its first GPU may be another one.
    """
    try:
        import pynvml as nvml
    except ImportError:
        return
    # Like CUDA, stop at the first name that is not a GPU, such as "" or -1.
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        names = visible.split(",") if visible is not None else map(str, range(nvml.nvmlDeviceGetCount()))
        for name in map(str.strip, names):
            if name.isdecimal():
                yield nvml, nvml.nvmlDeviceGetHandleByIndex(int(name))
            else:
                yield nvml, nvml.nvmlDeviceGetHandleByUUID(name)
