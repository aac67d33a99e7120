"""What the GPU is doing, for the live display. Without nvidia-ml-py or a card it says nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mmf_win.console import size

_INTERVAL = 2.0


class Card:
    """The first card that the worker may use.

    NVML counts cards by their place on the bus. CUDA does so only where CUDA_DEVICE_ORDER is PCI_BUS_ID; with
    cards of different kinds its first may be another.

    Args:
        environ: whose CUDA_VISIBLE_DEVICES names the card, by number or by UUID.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._wanted = environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        self._nvml: Any = None
        self._handle: Any = None
        self._figures = ""
        self._next = time.monotonic()
        with suppress(ImportError):
            import pynvml

            with suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                self._handle = self._find(pynvml)
                self._nvml = pynvml

    def figures(self) -> str:
        """``GPU 87 %, 10.2 of 24.0 GiB``, at most two seconds old; empty where nothing is known."""
        if self._nvml is None or time.monotonic() < self._next:
            return self._figures
        self._next = time.monotonic() + _INTERVAL
        try:
            busy = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        except self._nvml.NVMLError:  # a driver of a virtual machine may know neither
            self._nvml, self._figures = None, ""
        else:
            self._figures = f"GPU {busy} %, {size(memory.used)} of {size(memory.total)}"
        return self._figures

    def _find(self, nvml: Any) -> Any:
        if self._wanted.isdecimal():
            return nvml.nvmlDeviceGetHandleByIndex(int(self._wanted))
        return nvml.nvmlDeviceGetHandleByUUID(self._wanted)
