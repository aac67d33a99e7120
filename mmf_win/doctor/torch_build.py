"""Which of PyTorch's builds suits this machine, and how pip gets it at the tested version."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from mmf_win.paths import constraints_file
from mmf_win.runs import gpus

_INDEX = "https://download.pytorch.org/whl/"
_PACKAGES = ("torch", "torchvision")
# Of torch 2.13.0: what pip downloads for it, the packages of CUDA included, which Linux has apart.
_SIZES = {
    "cpu": {"linux": "0.2 GB", "win32": "0.1 GB", "darwin": "0.1 GB"},
    "cu126": {"linux": "3 GB, 6 GB installed", "win32": "2.6 GB"},
    "cu130": {"linux": "3 GB, 6 GB installed", "win32": "1.9 GB"},
}
# The GPUs that a build has code for: https://github.com/pytorch/pytorch/issues/178665
_OLDEST = {"cu126": (5, 0), "cu130": (7, 5)}
_BLACKWELL = (10, 0)  # unknown to cu126


@dataclass(frozen=True)
class TorchBuild:
    """A build of PyTorch.

    Attributes:
        name: as PyTorch's index calls it: ``cpu``, ``cu130``.
        why: why it is this one, for people.
        size: how much pip downloads.
        pip: the words of the command.
    """

    name: str
    why: str
    size: str
    pip: tuple[str, ...]


def suited(platform: str = sys.platform) -> TorchBuild:
    """The build that suits this machine."""
    name, why = _choice(gpus.cuda()) if platform != "darwin" else ("cpu", "there is no CUDA for macOS")
    # A local version is above the same without one, and named it is sure to come from PyTorch's index.
    local = "" if platform == "darwin" else f"+{name}"
    index = () if platform == "darwin" else ("--extra-index-url", _INDEX + name)
    wanted = (f"{package}=={_tested(package)}{local}" for package in _PACKAGES)
    command = ("pip", "install", "-c", str(constraints_file()), *index, *wanted)
    return TorchBuild(name, why, _SIZES[name].get(platform, _SIZES[name]["linux"]), command)


def _choice(cuda: gpus.Cuda | None) -> tuple[str, str]:
    if cuda is None:
        return "cpu", "NVIDIA's driver knows no GPU here"
    shown = f"the driver runs CUDA {cuda.newest[0]}.{cuda.newest[1]}"
    if cuda.newest >= (13, 0) and cuda.capability >= _OLDEST["cu130"]:
        return "cu130", shown
    if cuda.newest >= (12, 0) and _OLDEST["cu126"] <= cuda.capability < _BLACKWELL:
        return "cu126", f"{shown}, the GPU has compute capability {cuda.capability[0]}.{cuda.capability[1]}"
    if cuda.capability < _OLDEST["cu126"]:
        return "cpu", "this GPU is older than those that PyTorch has code for"
    return "cpu", f"{shown}; with driver 580 or newer the build for CUDA 13.0 would use the GPU"


def _tested(package: str) -> str:
    pins = constraints_file().read_text(encoding="utf-8")
    found = re.search(rf"^{package}==(\S+)$", pins, re.MULTILINE)
    assert found is not None, f"{package} is not pinned"
    return found[1]
