"""Fake NVML with two GPUs, because the machines that run the tests have none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

SHARED_GPU = "GPU-shared"
"""UUID of a GPU without dedicated memory, for which NVML reports no memory."""


class FakeNvml:
    """Part of pynvml that mmfw uses.

    Attributes:
        utilization_queries: Handles whose utilization was queried.
        reports_utilization: Whether NVML reports the utilization.
        free_bytes: Free bytes of each GPU.
        cuda_version: Newest CUDA version that the driver supports, in the format of NVML.
        capability: Compute capability of each GPU.
    """

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.utilization_queries: list[Any] = []
        self.reports_utilization = True
        self.free_bytes = [1 << 30, 2 << 30]
        self.cuda_version = 13000
        self.capability = [(9, 0), (8, 6)]

    def nvmlInit(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda_version

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:
        return self.capability[handle]

    def nvmlDeviceGetCount(self) -> int:
        return len(self.free_bytes)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index >= len(self.free_bytes):
            raise self.NVMLError
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if not uuid.startswith("GPU-"):
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return f"NVIDIA {handle}"

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> SimpleNamespace:
        self.utilization_queries.append(handle)
        if not self.reports_utilization:
            raise self.NVMLError
        return SimpleNamespace(gpu=87)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> SimpleNamespace:
        if handle == SHARED_GPU or (isinstance(handle, int) and not self.free_bytes[handle]):
            raise self.NVMLError
        free = self.free_bytes[handle] if isinstance(handle, int) else 14 << 30
        return SimpleNamespace(free=free, used=10 << 30, total=24 << 30)
