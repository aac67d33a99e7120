"""Which of PyTorch's builds suits this machine, and how pip gets it at the tested version."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import NamedTuple

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


class _CudaBuild(NamedTuple):
    """A build for CUDA.

    Attributes:
        cuda: the version of CUDA.
        needs: the CUDA that the driver has to run at least.
        driver: the first of NVIDIA's drivers that does.
        oldest: the lowest compute capability that it has code for.
        newest: the highest.
    """

    cuda: str
    needs: tuple[int, int]
    driver: int
    oldest: tuple[int, int]
    newest: tuple[int, int]

    @property
    def name(self) -> str:
        """As PyTorch's index calls it."""
        return f"cu{self.cuda.replace('.', '')}"

    def knows(self, cuda: gpus.Cuda) -> bool:
        """Whether it has code for one of the GPUs."""
        return any(self.oldest <= capability <= self.newest for capability in cuda.capabilities)


# The newest first. What they have code for: https://github.com/pytorch/pytorch/issues/178665
_CUDA_BUILDS = (
    _CudaBuild("13.0", (13, 0), 580, oldest=(7, 5), newest=(12, 9)),
    _CudaBuild("12.6", (12, 0), 525, oldest=(5, 0), newest=(9, 0)),
)


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
    name, why = choice(gpus.cuda()) if platform != "darwin" else ("cpu", "there is no CUDA for macOS")
    # A local version is above the same without one, and named it is sure to come from PyTorch's index.
    local = "" if platform == "darwin" else f"+{name}"
    index = () if platform == "darwin" else ("--extra-index-url", _INDEX + name)
    wanted = (f"{package}=={_tested(package)}{local}" for package in _PACKAGES)
    command = ("pip", "install", "-c", str(constraints_file()), *index, *wanted)
    return TorchBuild(name, why, _SIZES[name].get(platform, _SIZES[name]["linux"]), command)


def choice(cuda: gpus.Cuda | None) -> tuple[str, str]:
    """The name of the build that suits, and why it does: the newest that can use one of the GPUs."""
    if cuda is None:
        return "cpu", "NVIDIA's driver knows no GPU here"
    shown = f"the driver runs CUDA {cuda.newest[0]}.{cuda.newest[1]}"
    known = [build for build in _CUDA_BUILDS if build.knows(cuda)]
    for build in known:
        if cuda.newest >= build.needs:
            return build.name, f"{shown}, and the GPU is one that this build has code for"
    if not known:
        return "cpu", "PyTorch has no code for this GPU"
    newer = f"with driver {known[0].driver} or newer the build for CUDA {known[0].cuda} would use the GPU"
    return "cpu", f"{shown}; {newer}"


def has_code(built_for: str, cuda: gpus.Cuda) -> bool:
    """Whether a torch for this version of CUDA has code for one of the GPUs; True where that is not known."""
    return all(build.knows(cuda) for build in _CUDA_BUILDS if build.cuda == built_for)


def _tested(package: str) -> str:
    pins = constraints_file().read_text(encoding="utf-8")
    found = re.search(rf"^{package}==(\S+)$", pins, re.MULTILINE)
    assert found is not None, f"{package} is not pinned"
    return found[1]
