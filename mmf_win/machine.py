"""The resources of this machine: processors and their quota, memory, and NVIDIA's GPUs by NVML."""

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

_MAX_THREADS = 4  # more of them would wait for the disk, and each needs memory
_GPU_POLL_SECONDS = 2.0
_VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"


def default_thread_count() -> int:
    """Return how many threads are worth starting for work on files."""
    return min(available_cpus(), _MAX_THREADS)


def available_cpus(root: Path = Path("/")) -> int:
    """Return how many processors this process may use: those of its affinity, and no more than its quota.

    Args:
        root: the folder that holds ``proc`` and ``sys``.
    """
    usable = os.cpu_count() or 1
    if sys.platform == "linux":
        usable = len(os.sched_getaffinity(0))
    usable = getattr(os, "process_cpu_count", lambda: usable)() or 1  # Python 3.13: the user may set it
    return math.ceil(min(usable, cpu_quota(root)))


def cpu_quota(root: Path = Path("/")) -> float:
    """Return how many processors' time the control groups of this process allow; infinity without a limit.

    The smallest quota of its groups and those above them counts
    (https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/scheduler/sched-bwc.html).
    """
    quotas = [math.inf]
    with suppress(OSError, ValueError):  # only Linux has this file
        for line in os.fsdecode((root / "proc/self/cgroup").read_bytes()).splitlines():
            _, controllers, path = line.split(":", 2)
            group = Path(root, "sys/fs/cgroup", "cpu" if controllers else "", path[1:])
            if not controllers or "cpu" in controllers.split(","):
                # In a container, the group itself may not be visible, but the root is.
                quotas += map(_read_quota, (group, *group.parents))
    return min(quotas)


def _read_quota(group: Path) -> float:
    """Return the quota of one control group of version 2 or 1, in processors."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        with suppress(OSError, ValueError, ZeroDivisionError):  # without a limit, the quota is "max" or -1
            quota, period = map(int, b" ".join((group / name).read_bytes() for name in names).split())
            return quota / period if quota > 0 else math.inf
    return math.inf


def limit_threads(processes: int, root: Path = Path("/")) -> None:
    """Have libraries of each process start no more threads than its share of what this process may use.

    A single process needs to be told only of a CPU quota, which libraries do not read themselves.
    """
    if processes > 1 or cpu_quota(root) < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cpus(root) // processes)))


def total_memory() -> int | None:
    """Return the bytes of memory that are installed; None where the system does not tell."""
    if sys.platform == "win32":
        kilobytes = ctypes.c_uint64()
        known = ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
        return kilobytes.value << 10 if known else None
    with suppress(ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


@dataclass(frozen=True)
class Cuda:
    """The CUDA of this machine.

    Attributes:
        newest: the newest CUDA that the driver runs, such as ``(12, 6)``.
        capabilities: the compute capability of each GPU.
    """

    newest: tuple[int, int]
    capabilities: tuple[tuple[int, int], ...]


def survey_cuda() -> Cuda | None:
    """Return what a CUDA program finds here; None where there is no GPU, or the driver does not say."""
    found = list(_iter_gpu_handles(None))
    for nvml, _ in found[:1]:
        with suppress(nvml.NVMLError):
            version = nvml.nvmlSystemGetCudaDriverVersion_v2()
            each = (tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)) for _, handle in found)
            return Cuda((version // 1000, version % 1000 // 10), tuple(each))
    return None


def installed_gpus() -> list[dict[str, Any]]:
    """Return the name, the memory in bytes (0 if it is shared with the CPU) and the driver of each GPU."""
    found = []
    for nvml, handle in _iter_gpu_handles(None):
        memory = 0
        with suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle).total
        name, driver = nvml.nvmlDeviceGetName(handle), nvml.nvmlSystemGetDriverVersion()
        found.append({"name": name, "memory": memory, "driver": driver})
    return found


def free_gpu_memory() -> list[int]:
    """Return the free bytes of each GPU that a worker may use; GPUs that do not tell them are left out."""
    free = []
    for nvml, handle in _iter_gpu_handles(os.environ.get(_VISIBLE_DEVICES_VARIABLE)):
        with suppress(nvml.NVMLError):
            free.append(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    return free


def count_gpus() -> int:
    """Return how many GPUs a worker may use."""
    return sum(1 for _ in _iter_gpu_handles(os.environ.get(_VISIBLE_DEVICES_VARIABLE)))


def iter_gpu_usage() -> Iterator[str]:
    """Yield what the first GPU that the worker may use is doing, for the live display.

    Yields:
        ``GPU 87 %, 10.2 of 24.0 GiB``, at most two seconds old, for as long as the driver knows it.
    """
    for nvml, handle in islice(_iter_gpu_handles(os.environ.get(_VISIBLE_DEVICES_VARIABLE)), 1):
        with suppress(nvml.NVMLError):  # a driver of a virtual machine may know neither
            while True:
                busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                until = time.monotonic() + _GPU_POLL_SECONDS
                while time.monotonic() < until:
                    yield f"GPU {busy} %, {format_size(memory.used)} of {format_size(memory.total)}"


def _iter_gpu_handles(visible: str | None) -> Iterator[tuple[Any, Any]]:
    """Yield NVML and its handle of each GPU, or only of those that ``visible`` names by number or UUID.

    NVML numbers GPUs by their place on the bus. CUDA does so only where CUDA_DEVICE_ORDER is PCI_BUS_ID; with
    GPUs of different kinds its first may be another.
    """
    try:
        import pynvml as nvml
    except ImportError:
        return
    # After the first name that is not a GPU's, as "" and -1 are, CUDA shows no others either.
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        names = visible.split(",") if visible is not None else map(str, range(nvml.nvmlDeviceGetCount()))
        for name in map(str.strip, names):
            if name.isdecimal():
                yield nvml, nvml.nvmlDeviceGetHandleByIndex(int(name))
            else:
                yield nvml, nvml.nvmlDeviceGetHandleByUUID(name)
