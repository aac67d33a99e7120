"""The survey of ``mmfw doctor``: versions, MMF, folders and machine, and what is missing.

It also detects the installed and the best build of torch, and relevant Windows settings.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from mmf_win import machine
from mmf_win.archives.zip_extract import decryption_engine
from mmf_win.console import format_command
from mmf_win.dataset.annotations import list_splits, missing_dataset_hint
from mmf_win.errors import DatasetError, InUseError, MmfEnvironmentError, MmfwError, ResourceError, UsageError
from mmf_win.files import free_space
from mmf_win.paths import MmfPaths, constraints_file, mmfw_home, presets_dir
from mmf_win.runs import micro_batch_store
from mmf_win.unpacking.staging import require_complete_install, require_creatable_folders
from mmf_win.upstream.install import MmfInstall, find_changed_files, find_mmf, has_selected_mmf, pip_hint
from mmf_win.version import __version__

if sys.platform == "win32":
    import ctypes
    import winreg

_TORCH_PACKAGES = ("torch", "torchvision")  # with separate builds for GPUs and CPUs
_TORCH_INDEX_URL = "https://download.pytorch.org/whl/"
_TORCH_VERSION_LINE = re.compile(r"^(cuda|hip)\b[^=\n]*= *(?:['\"]([^'\"]+)['\"]|None)", re.MULTILINE)
# https://learn.microsoft.com/windows/win32/fileio/maximum-file-path-limitation
_LONG_PATHS = (r"SYSTEM\CurrentControlSet\Control\FileSystem", "LongPathsEnabled")
# https://learn.microsoft.com/windows/apps/get-started/enable-your-device-for-development
_APP_MODEL_KEY = r"SOFTWARE\Microsoft\Windows\CurrentVersion\AppModelUnlock"
_DEVELOPER_MODE = (_APP_MODEL_KEY, "AllowDevelopmentWithoutDevLicense")
_INSTALL_HINT = "run `mmfw setup --torch` for the pip command that installs the build for this machine"
# A checkpoint of a BERT model with its optimizer is about 1.3 GB, and a run keeps a few of them.
_MIN_FREE_BYTES = 10 << 30


@dataclass(frozen=True)
class MmfState:
    """State of the MMF in use.

    Attributes:
        installed: The copy; ``None`` if there is none.
        problems: Problems of the copy, one line per file; ``None`` if it cannot be verified.
        error: Error that prevents its use, if any.
    """

    installed: MmfInstall | None
    problems: tuple[str, ...] | None = ()
    error: MmfEnvironmentError | None = None


def survey_environment(mmf_paths: MmfPaths) -> dict[str, Any]:
    """Examine everything without importing heavy packages or changing anything.

    Returns:
        Plain values, except ``mmf``, ``torch`` and ``missing``: the errors that would end a training, in the
        order in which they should be fixed.
    """
    mmf, torch, cuda = survey_mmf(), survey_torch(), machine.survey_cuda()
    images = mmf_paths.dataset.images / "img"
    system = {"mmfw": __version__, "python": sys.version.split()[0], "system": platform.platform()}
    packages = (*list_required_packages(), *list_required_packages("train"))
    result = {
        "versions": system | {name: read_installed_version(name) for name in packages},
        "mmf": mmf,
        "folders": list(_survey_folders(mmf_paths, mmf)),
        "dataset": {
            "splits": sorted(list_splits(mmf_paths.dataset)),
            "images": sum(1 for _ in images.iterdir()) if images.is_dir() else 0,
            "features": (mmf_paths.dataset.features / "detectron.lmdb").is_dir(),
        },
        "machine": {
            "cpus": machine.available_cpus(),
            "memory": machine.total_memory(),
            "gpus": machine.installed_gpus(),
        },
        "settings": survey_windows_settings(),
        "torch": torch,
        "cuda": cuda and asdict(cuda),
        "decryption": decryption_engine(),
        "fits": micro_batch_store.load_micro_batches(),
    }
    return result | {"missing": list(_find_missing(result, unused_gpu_error(torch, cuda), mmf_paths))}


def list_required_packages(extra: str = "") -> list[str]:
    """Return the packages that mmfw or an extra of it requires; empty if mmfw is not installed."""
    with suppress(importlib.metadata.PackageNotFoundError):  # run from a checkout
        listed = "\n".join(importlib.metadata.requires("mmf-win") or ())
        packages = re.findall(r"^([\w.-]+)(?:.* extra == ['\"](\w+))?", listed, re.MULTILINE)
        return [name for name, package_extra in packages if package_extra == extra]
    return []


def read_installed_version(distribution: str) -> str | None:
    """Return the version of an installed package, or ``None`` if it is not installed."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def survey_mmf(*, full: bool = False) -> MmfState:
    """Verify the MMF in use; with ``full``, read every file of it."""
    try:
        installed = find_mmf()
    except MmfEnvironmentError as error:
        return MmfState(None, (str(error),) if has_selected_mmf() else (), error)
    changed = find_changed_files(installed, full=full)
    if not changed:
        return MmfState(installed, None if changed is None else ())
    message = f"changed or missing files of MMF: {len(changed)}"
    return MmfState(installed, tuple(changed), MmfEnvironmentError(message, hint="run `mmfw setup`"))


def _survey_folders(mmf_paths: MmfPaths, mmf: MmfState) -> Iterator[dict[str, Any]]:
    """Yield name, path, origin, existence and free space of each folder.

    ``named_by`` is the option or variable that sets a folder of MMF, or ``default``. MMF and mmfw create
    their folders when they need them.
    """
    default, cache_names = MmfPaths.resolve(), ("MMF_CACHE_DIR", "TORCH_HOME", "XDG_CACHE_HOME")
    by_folder = {"data": ("MMF_DATA_DIR", *cache_names), "cache": cache_names, "runs": ("MMF_SAVE_DIR",)}
    named_by = {name: next(filter(os.environ.get, variables), "default") for name, variables in by_folder.items()}
    named_by |= {"data": "--data-dir"} if mmf_paths.data_dir != default.data_dir else {}
    named_by |= {"runs": "--save-dir"} if mmf_paths.save_dir != default.save_dir else {}
    paths = {
        "data": mmf_paths.data_dir,
        "cache": mmf_paths.cache_dir,
        "runs": mmf_paths.save_dir,
        "dataset": mmf_paths.dataset.root,
        "presets": presets_dir(),
        "tool home": mmfw_home(),
        "decoded images": mmf_paths.image_cache_dir,
        "mmf": mmf.installed.root if mmf.installed else None,
    }
    for name, path in paths.items():
        if path is not None:
            exists, free = path.is_dir(), free_space(path)
            yield {"name": name, "path": path, "named_by": named_by.get(name), "exists": exists, "free": free}


def _find_missing(
    survey_result: dict[str, Any], gpu_error: MmfEnvironmentError | None, mmf_paths: MmfPaths
) -> Iterator[MmfwError]:
    if not list_required_packages():
        message = "mmfw is not installed as a package, so missing packages cannot be determined"
        yield MmfEnvironmentError(message, hint=pip_hint())
    # PyTorch first, because pip would install its CUDA build as a dependency of the rest on any Linux.
    hints: dict[tuple[str, ...], str] = {_TORCH_PACKAGES: f"run `{format_command(*torch_install_command())}`"}
    hints |= {tuple(list_required_packages(extra)): pip_hint(extra and f"[{extra}]") for extra in ("", "train")}
    for names, hint in hints.items():
        missing = [name for name in names if survey_result["versions"].get(name, "") is None]
        if packages := [name for name in missing if names is _TORCH_PACKAGES or name not in _TORCH_PACKAGES]:
            yield MmfEnvironmentError(f"not installed: {', '.join(packages)}", hint=hint)
    yield from (error for error in (gpu_error, survey_result["mmf"].error) if error is not None)
    try:
        require_complete_install(mmf_paths.dataset.root)
    except (DatasetError, InUseError) as error:
        yield error
    else:
        if not survey_result["dataset"]["splits"] or not survey_result["dataset"]["images"]:
            message = f"no Hateful Memes dataset in {mmf_paths.dataset.root}"
            yield DatasetError(message, hint=missing_dataset_hint(mmf_paths.dataset))
    try:
        require_creatable_folders(mmf_paths)
    except MmfwError as error:
        yield error
    for folder in survey_result["folders"]:
        location, free = f"for {folder['name']} in {folder['path']}", folder["free"]
        if free is None:
            yield UsageError(f"no drive {location}", hint="choose another folder")
        elif folder["name"] in ("data", "runs") and free < _MIN_FREE_BYTES:
            yield ResourceError(f"little disk space {location}", hint="free some space")


class _CudaBuild(NamedTuple):
    """A build of PyTorch for CUDA.

    Attributes:
        cuda: CUDA version of the build.
        min_driver_cuda: Lowest CUDA version that the driver must support.
        min_capability: Lowest compute capability that the build supports.
        max_capability: Highest compute capability that the build supports.
    """

    cuda: str
    min_driver_cuda: tuple[int, int]
    min_capability: tuple[int, int]
    max_capability: tuple[int, int]

    def supports(self, cuda: machine.Cuda) -> bool:
        """Return whether the build supports at least one of the GPUs."""
        return any(self.min_capability <= capability <= self.max_capability for capability in cuda.capabilities)


# Newest first. Supported GPUs: https://github.com/pytorch/pytorch/issues/178665
_CUDA_BUILDS = (
    _CudaBuild("13.0", (13, 0), min_capability=(7, 5), max_capability=(12, 9)),
    _CudaBuild("12.6", (12, 0), min_capability=(5, 0), max_capability=(9, 0)),
)


@dataclass(frozen=True)
class TorchBuild:
    """The CUDA and ROCm versions of the installed torch build; ``None`` if it was not built for them."""

    cuda: str | None
    rocm: str | None = None

    @property
    def target(self) -> str:
        """Target of the build, for messages."""
        return f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.rocm}" if self.rocm else "the CPU"


def survey_torch() -> TorchBuild | None:
    """Return the build of the installed torch without importing it, or ``None`` if there is none."""
    spec = find_spec("torch")
    if spec is not None and spec.origin is not None:
        with suppress(OSError, ValueError, KeyError):
            text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
            versions = dict(_TORCH_VERSION_LINE.findall(text))
            return TorchBuild(versions["cuda"] or None, versions.get("hip") or None)
    return None


def unused_gpu_error(torch: TorchBuild | None, cuda: machine.Cuda | None) -> MmfEnvironmentError | None:
    """Return the error for a torch build that cannot use the GPU.

    A driver also runs builds for a newer CUDA of the same major version.

    Args:
        torch: Installed build, if any.
        cuda: Driver and GPUs, if any.
    """
    if torch is None or cuda is None or (torch.cuda is None and _best_build_name(cuda) == "cpu"):
        return None
    if torch.cuda is None:
        return MmfEnvironmentError(f"a GPU is available, but torch was built for {torch.target}", hint=_INSTALL_HINT)
    if not all(build.supports(cuda) for build in _CUDA_BUILDS if build.cuda == torch.cuda):
        message = f"torch was built for CUDA {torch.cuda}, which does not support the GPU"
        return MmfEnvironmentError(message, hint=_INSTALL_HINT)
    if int(torch.cuda.partition(".")[0]) > cuda.newest[0]:
        newest = ".".join(map(str, cuda.newest))
        message = f"torch was built for CUDA {torch.cuda}, but the NVIDIA driver supports CUDA {newest}"
        return MmfEnvironmentError(message, hint=f"update the driver, or {_INSTALL_HINT}")
    return None


def torch_install_command() -> tuple[str, ...]:
    """Return the arguments of the command that installs the tested torch build for this machine."""
    pins = dict(re.findall(r"^(\S+)==(\S+)$", constraints_file().read_text(encoding="utf-8"), re.MULTILINE))
    index, requirements = [], [f"{package}=={pins[package]}" for package in _TORCH_PACKAGES]
    if sys.platform != "darwin":  # macOS has a single build, on PyPI
        name = _best_build_name(machine.survey_cuda())
        # Only PyTorch's index has local versions such as 2.6.0+cpu, so pip cannot choose PyPI's build.
        index = ["--extra-index-url", _TORCH_INDEX_URL + name]
        requirements = [f"{package}+{name}" for package in requirements]
    return ("pip", "install", "-c", str(constraints_file()), *index, *requirements)


def _best_build_name(cuda: machine.Cuda | None) -> str:
    """Return the name of the newest build that supports one of the GPUs, as in the URL of PyTorch's index."""
    usable = (build for build in _CUDA_BUILDS if cuda and build.supports(cuda) and cuda.newest >= build.min_driver_cuda)
    return next((f"cu{build.cuda.replace('.', '')}" for build in usable), "cpu")


def survey_windows_settings() -> list[dict[str, str | None]]:
    """Return the relevant Windows settings; empty on other systems.

    ``hint`` states the drawback of a setting and the command that changes it; it is ``None`` if there is
    none.
    """
    settings: list[dict[str, str | None]] = []
    if sys.platform == "win32":
        for name, (key, value), drawback in (
            ("long paths", _LONG_PATHS, "paths are limited to 260 characters"),
            ("developer mode", _DEVELOPER_MODE, "without symbolic links, Hugging Face's cache may take more space"),
        ):
            is_on = False
            with suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
                is_on = winreg.QueryValueEx(opened, value)[0] == 1
            command = f"reg add HKLM\\{key} /v {value} /t REG_DWORD /d 1 /f"
            hint = None if is_on else f"{drawback}; run `{command}` as administrator to turn it on"
            settings.append({"name": name, "value": "on" if is_on else "off", "hint": hint})
        code_page = str(ctypes.windll.kernel32.GetACP())
        settings.append({"name": "code page", "value": code_page, "hint": None})
    return settings
