"""What the machine has to offer, found without importing anything heavy."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from mmf_win.runs import gpus
from mmf_win.threads import processors


@dataclass(frozen=True)
class Machine:
    """The machine.

    Attributes:
        cpus: how many of its processors this process may use.
        memory: its memory in bytes; None where the system does not say.
        gpus: the GPUs that the driver shows; none without a driver.
    """

    cpus: int
    memory: int | None
    gpus: tuple[gpus.Gpu, ...]


def survey_machine() -> Machine:
    """Look at this machine."""
    return Machine(processors(), _memory(), tuple(gpus.installed()))


def _memory() -> int | None:
    if sys.platform == "win32":
        return _windows_memory()
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    class _MemoryStatus(ctypes.Structure):
        """https://learn.microsoft.com/windows/win32/api/sysinfoapi/ns-sysinfoapi-memorystatusex"""

        _fields_ = (
            ("dwLength", wintypes.DWORD),
            ("dwMemoryLoad", wintypes.DWORD),
            ("ullTotalPhys", ctypes.c_uint64),
            ("ullAvailPhys", ctypes.c_uint64),
            ("ullTotalPageFile", ctypes.c_uint64),
            ("ullAvailPageFile", ctypes.c_uint64),
            ("ullTotalVirtual", ctypes.c_uint64),
            ("ullAvailVirtual", ctypes.c_uint64),
            ("ullAvailExtendedVirtual", ctypes.c_uint64),
        )

    def _windows_memory() -> int | None:
        status = _MemoryStatus(dwLength=ctypes.sizeof(_MemoryStatus))
        known = ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return int(status.ullTotalPhys) if known else None
