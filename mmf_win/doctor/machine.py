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
        import ctypes

        kilobytes = ctypes.c_uint64()
        known = ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
        return kilobytes.value << 10 if known else None
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
