"""Where tasks run on this machine: one slot a GPU, several, or the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from mmf_win.errors import UsageError
from mmf_win.runs import gpus
from mmf_win.sweeps.specification import CPU, OTHER_GPUS
from mmf_win.threads import processors


@dataclass(frozen=True)
class Slot:
    """Room for one task at a time.

    Attributes:
        number: from 0 on.
        resource: the GPUs that it has, as CUDA_VISIBLE_DEVICES names them, or ``cpu``.
        environment: variables for its tasks.
        gpus: how many of a cluster, which chooses them itself.
    """

    number: int
    resource: str
    environment: Mapping[str, str]
    gpus: int = 0


def local(
    resources: Sequence[str] | None, count: int | None, environ: Mapping[str, str] = os.environ
) -> list[Slot]:
    """The slots of this machine.

    Args:
        resources: what each slot has; None for one slot a GPU, or one without where there is no GPU.
        count: how many slots; they share the resources in turn. None for one slot a resource.
        environ: names the GPUs that may be used, and how many threads a process has, where somebody said so.

    Raises:
        UsageError: a resource is not there.
    """
    found = [str(number) for number in range(len(gpus.installed()))]
    if resources is None:
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        resources = (found if visible is None else [name for name in visible.split(",") if name != "-1"]) or [
            CPU
        ]
        resources = [name for name in resources if name] or [CPU]
    for resource in resources:
        for gpu in () if resource == CPU else resource.split(","):
            if gpu.strip() not in found and not gpu.strip().startswith(("GPU-", "MIG-")):
                there = f"it has {', '.join(found)}" if found else "it has none that NVIDIA's driver knows"
                raise UsageError(f"this machine has no GPU {gpu.strip()}; {there}", hint=OTHER_GPUS)
    chosen = list(islice(cycle(resources), count or len(resources)))
    threads = {}
    if "OMP_NUM_THREADS" not in environ:
        threads["OMP_NUM_THREADS"] = str(max(1, processors() // len(chosen)))
    return [
        Slot(n, name, {"CUDA_VISIBLE_DEVICES": "-1" if name == CPU else name, **threads})
        for n, name in enumerate(chosen)
    ]
