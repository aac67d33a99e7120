"""NVIDIA's GPUs, as NVML reports them. Without a driver there are none."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mmf_win.console import size

_INTERVAL = 2.0
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Cuda:
    """What a CUDA program finds here.

    Attributes:
        newest: the newest CUDA that the driver runs, such as ``(12, 6)``.
        capabilities: the compute capability of each GPU.
    """

    newest: tuple[int, int]
    capabilities: tuple[tuple[int, int], ...]


def cuda() -> Cuda | None:
    """What a CUDA program finds here; None where there is no GPU, or the driver does not say."""
    found = list(_handles(None))
    for nvml, _ in found[:1]:
        with suppress(nvml.NVMLError):
            version = nvml.nvmlSystemGetCudaDriverVersion_v2()
            each = (tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)) for _, handle in found)
            return Cuda((version // 1000, version % 1000 // 10), tuple(each))
    return None


def installed() -> list[dict[str, Any]]:
    """All GPUs of this machine: name, memory in bytes (0 where it is shared with the CPU) and driver."""
    found = []
    for nvml, handle in _handles(None):
        memory = 0
        with suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle).total
        name, driver = nvml.nvmlDeviceGetName(handle), nvml.nvmlSystemGetDriverVersion()
        found.append({"name": name, "memory": memory, "driver": driver})
    return found


def free_memory() -> list[int]:
    """Free bytes of each GPU that a worker may use; those that do not say are left out."""
    free = []
    for nvml, handle in _handles(os.environ.get(_VISIBLE)):
        with suppress(nvml.NVMLError):
            free.append(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    return free


def count() -> int:
    """How many GPUs a worker may use."""
    return sum(1 for _ in _handles(os.environ.get(_VISIBLE)))


def figures() -> Iterator[str]:
    """What the first GPU that the worker may use is doing, for the live display.

    Yields:
        ``GPU 87 %, 10.2 of 24.0 GiB``, at most two seconds old, for as long as the driver knows it.
    """
    for nvml, handle in islice(_handles(os.environ.get(_VISIBLE)), 1):
        with suppress(nvml.NVMLError):  # a driver of a virtual machine may know neither
            while True:
                busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                until = time.monotonic() + _INTERVAL
                while time.monotonic() < until:
                    yield f"GPU {busy} %, {size(memory.used)} of {size(memory.total)}"


def _handles(visible: str | None) -> Iterator[tuple[Any, Any]]:
    """NVML, and its handle of each GPU; or only of those that ``visible`` names by number or UUID.

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
