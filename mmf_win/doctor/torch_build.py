"""Which of PyTorch's builds suits this machine, and how pip gets it at the tested version."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from mmf_win.paths import constraints_file
from mmf_win.runs import gpus

_INDEX = "https://download.pytorch.org/whl/"
_PACKAGES = ("torch", "torchvision")


class _CudaBuild(NamedTuple):
    """A build for CUDA.

    Attributes:
        cuda: the version of CUDA.
        needs: the CUDA that the driver has to run at least.
        oldest: the lowest compute capability that it has code for.
        newest: the highest.
    """

    cuda: str
    needs: tuple[int, int]
    oldest: tuple[int, int]
    newest: tuple[int, int]

    def knows(self, cuda: gpus.Cuda) -> bool:
        """Whether it has code for one of the GPUs."""
        return any(self.oldest <= capability <= self.newest for capability in cuda.capabilities)


# The newest first. What they have code for: https://github.com/pytorch/pytorch/issues/178665
_CUDA_BUILDS = (
    _CudaBuild("13.0", (13, 0), oldest=(7, 5), newest=(12, 9)),
    _CudaBuild("12.6", (12, 0), oldest=(5, 0), newest=(9, 0)),
)


def pip_line(platform: str = sys.platform) -> tuple[str, ...]:
    """The words of the command that gets the build for this machine."""
    name = choice(gpus.cuda())
    # A local version is above the same without one, and named it is sure to come from PyTorch's index.
    local, index = f"+{name}", ["--extra-index-url", _INDEX + name]
    if platform == "darwin":  # which has one build, on PyPI
        local, index = "", []
    wanted = [f"{package}=={_tested(package)}{local}" for package in _PACKAGES]
    return ("pip", "install", "-c", str(constraints_file()), *index, *wanted)


def choice(cuda: gpus.Cuda | None) -> str:
    """The build that suits, as PyTorch's index calls it: the newest that can use one of the GPUs."""
    usable = (build for build in _CUDA_BUILDS if cuda and build.knows(cuda) and cuda.newest >= build.needs)
    return next((f"cu{build.cuda.replace('.', '')}" for build in usable), "cpu")


def has_code(built_for: str, cuda: gpus.Cuda) -> bool:
    """Whether a torch for this version of CUDA has code for one of the GPUs; True where that is not known."""
    return all(build.knows(cuda) for build in _CUDA_BUILDS if build.cuda == built_for)


def _tested(package: str) -> str:
    pins = constraints_file().read_text(encoding="utf-8")
    found = re.search(rf"^{package}==(\S+)$", pins, re.MULTILINE)
    assert found is not None, f"{package} is not pinned"
    return found[1]
