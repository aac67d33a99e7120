"""Settings of Windows that matter here, and which CUDA torch was built for and the driver runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mmf_win.errors import UnusedGpu
from mmf_win.runs import gpus

if sys.platform == "win32":
    import ctypes
    import winreg

_CUDA = re.compile(r"^cuda\b[^=\n]*= *(?:['\"]([\d.]+)['\"]|None)", re.MULTILINE)
# https://learn.microsoft.com/windows/win32/fileio/maximum-file-path-limitation
_LONG_PATHS = (r"SYSTEM\CurrentControlSet\Control\FileSystem", "LongPathsEnabled")
# https://learn.microsoft.com/windows/apps/get-started/enable-your-device-for-development
_DEVELOPER = (
    r"SOFTWARE\Microsoft\Windows\CurrentVersion\AppModelUnlock",
    "AllowDevelopmentWithoutDevLicense",
)


@dataclass(frozen=True)
class Setting:
    """A setting of the system.

    Attributes:
        name: what it is.
        value: how it is set.
        hint: what it costs as it is, and what changes it; None where it costs nothing.
    """

    name: str
    value: str
    hint: str | None = None


@dataclass(frozen=True)
class Torch:
    """What the installed torch was built for.

    Attributes:
        cuda: the version of CUDA; None for a build without it.
    """

    cuda: str | None


def survey_settings() -> tuple[Setting, ...]:
    """The settings of Windows that matter here; none on other systems."""
    if sys.platform == "win32":
        return tuple(_windows_settings())
    return ()


def survey_torch() -> Torch | None:
    """The installed torch, which is not imported; None where there is none, or it does not say."""
    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        try:
            found = _CUDA.search(Path(folder, "version.py").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if found:
            return Torch(found[1])
    return None


def unused_gpu(torch: Torch | None, cuda: gpus.Cuda | None) -> UnusedGpu | None:
    """The error that torch cannot use the GPU; None where it can, or where there is no torch or no GPU.

    A driver runs what was built for a newer CUDA of the same major version.
    """
    if torch is None or cuda is None:
        return None
    if torch.cuda is None:
        return UnusedGpu("there is a GPU, and torch is built for the CPU")
    if int(torch.cuda.partition(".")[0]) > cuda.newest[0]:
        newest = ".".join(map(str, cuda.newest))
        message = f"torch is built for CUDA {torch.cuda}, and NVIDIA's driver runs CUDA {newest}"
        return UnusedGpu(message, hint="update the driver")
    return None


if sys.platform == "win32":

    def _windows_settings() -> Iterator[Setting]:
        for name, where, cost in (
            ("long paths", _LONG_PATHS, "paths end at 260 characters"),
            ("developer mode", _DEVELOPER, "without links, Hugging Face's cache may take more space"),
        ):
            is_on = _registry(*where) == 1
            command = f"reg add HKLM\\{where[0]} /v {where[1]} /t REG_DWORD /d 1 /f"
            hint = f"{cost}; as administrator, `{command}` turns it on"
            yield Setting(name, "on" if is_on else "off", None if is_on else hint)
        yield Setting("code page", str(ctypes.windll.kernel32.GetACP()))

    def _registry(key: str, name: str) -> object:
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
                return winreg.QueryValueEx(opened, name)[0]
        except OSError:
            return None
