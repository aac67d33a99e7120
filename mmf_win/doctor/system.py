"""The machine, the settings of Windows that matter here, and which build of torch is there and suits."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from mmf_win import machine
from mmf_win.errors import MmfError
from mmf_win.machine import available_cpus
from mmf_win.paths import constraints_file
from mmf_win.upstream.install import text_in_package

if sys.platform == "win32":
    import ctypes
    import winreg

BUILDS = ("torch", "torchvision")
"""The packages that are built for a GPU or the CPU."""
_INDEX = "https://download.pytorch.org/whl/"
_BUILT_FOR = re.compile(r"^(cuda|hip)\b[^=\n]*= *(?:['\"]([^'\"]+)['\"]|None)", re.MULTILINE)
# https://learn.microsoft.com/windows/win32/fileio/maximum-file-path-limitation
_LONG_PATHS = (r"SYSTEM\CurrentControlSet\Control\FileSystem", "LongPathsEnabled")
# https://learn.microsoft.com/windows/apps/get-started/enable-your-device-for-development
_APPS = r"SOFTWARE\Microsoft\Windows\CurrentVersion\AppModelUnlock"
_DEVELOPER = (_APPS, "AllowDevelopmentWithoutDevLicense")


class _CudaBuild(NamedTuple):
    """A build of PyTorch for CUDA.

    Attributes:
        cuda: its version.
        needs: the CUDA that the driver has to run at least.
        oldest, newest: the compute capabilities that it has code for.
    """

    cuda: str
    needs: tuple[int, int]
    oldest: tuple[int, int]
    newest: tuple[int, int]

    def knows(self, cuda: machine.Cuda) -> bool:
        """Whether it has code for one of the GPUs."""
        return any(self.oldest <= capability <= self.newest for capability in cuda.capabilities)


# The newest first. What they have code for: https://github.com/pytorch/pytorch/issues/178665
_CUDA_BUILDS = (
    _CudaBuild("13.0", (13, 0), oldest=(7, 5), newest=(12, 9)),
    _CudaBuild("12.6", (12, 0), oldest=(5, 0), newest=(9, 0)),
)


@dataclass(frozen=True)
class Torch:
    """The versions of CUDA and ROCm that the installed torch was built for; None for what it was not."""

    cuda: str | None
    rocm: str | None = None

    @property
    def target(self) -> str:
        """For people."""
        return f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.rocm}" if self.rocm else "the CPU"


def survey_machine() -> dict[str, Any]:
    """Its processors that this process may use, its memory where the system tells that, and its GPUs."""
    return {"cpus": available_cpus(), "memory": machine.total_memory(), "gpus": machine.installed_gpus()}


_INSTALL = "`mmfw setup --torch` prints the pip command that installs the build for this machine"


def survey_torch() -> Torch | None:
    """The installed torch, which is not imported; None where there is none, or it does not say."""
    found: dict[str, str] = dict(_BUILT_FOR.findall(text_in_package("torch", "version.py")))
    return Torch(found["cuda"] or None, found.get("hip") or None) if "cuda" in found else None


def unused_gpu(torch: Torch | None, cuda: machine.Cuda | None) -> MmfError | None:
    """The error that torch cannot use the GPU; None where it can, or where no other build could.

    A driver runs what was built for a newer CUDA of the same major version.
    """
    if torch is None or cuda is None:
        return None
    if torch.cuda is None:
        if _best_build(cuda) == "cpu":
            return None
        return MmfError(f"there is a GPU, and torch is built for {torch.target}", hint=_INSTALL)
    if not all(build.knows(cuda) for build in _CUDA_BUILDS if build.cuda == torch.cuda):
        message = f"torch is built for CUDA {torch.cuda}, which has no code for the GPU"
        return MmfError(message, hint=_INSTALL)
    if int(torch.cuda.partition(".")[0]) > cuda.newest[0]:
        newest = ".".join(map(str, cuda.newest))
        message = f"torch is built for CUDA {torch.cuda}, and NVIDIA's driver runs CUDA {newest}"
        return MmfError(message, hint=f"update the driver, or {_INSTALL}")
    return None


def pip_line() -> tuple[str, ...]:
    """The words of the command that gets the build for this machine, at the tested version."""
    pins = dict(re.findall(r"^(\S+)==(\S+)$", constraints_file().read_text(encoding="utf-8"), re.MULTILINE))
    index, wanted = [], [f"{package}=={pins[package]}" for package in BUILDS]
    if sys.platform != "darwin":  # which has one build, on PyPI
        name = _best_build(machine.survey_cuda())
        # A local version is above the same without one, and named it is sure to come from PyTorch's index.
        index, wanted = ["--extra-index-url", _INDEX + name], [f"{package}+{name}" for package in wanted]
    return ("pip", "install", "-c", str(constraints_file()), *index, *wanted)


def _best_build(cuda: machine.Cuda | None) -> str:
    """The build that suits, as PyTorch's index calls it: the newest that can use one of the GPUs."""
    usable = (build for build in _CUDA_BUILDS if cuda and build.knows(cuda) and cuda.newest >= build.needs)
    return next((f"cu{build.cuda.replace('.', '')}" for build in usable), "cpu")


def survey_settings() -> list[dict[str, str | None]]:
    """The settings of Windows that matter here; none on other systems.

    ``hint`` is what a setting costs as it is, and what changes it; None where it costs nothing.
    """
    found: list[dict[str, str | None]] = []
    if sys.platform == "win32":
        for name, (key, value), cost in (
            ("long paths", _LONG_PATHS, "paths end at 260 characters"),
            ("developer mode", _DEVELOPER, "without links, Hugging Face's cache may take more space"),
        ):
            is_on = False
            with suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
                is_on = winreg.QueryValueEx(opened, value)[0] == 1
            command = f"reg add HKLM\\{key} /v {value} /t REG_DWORD /d 1 /f"
            hint = None if is_on else f"{cost}; as administrator, `{command}` turns it on"
            found.append({"name": name, "value": "on" if is_on else "off", "hint": hint})
        code_page = str(ctypes.windll.kernel32.GetACP())
        found.append({"name": "code page", "value": code_page, "hint": None})
    return found
