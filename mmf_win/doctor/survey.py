"""The survey of ``mmfw doctor``: versions, MMF, folders, the machine, and what is missing among them.

Also which build of torch is there and which suits, and the settings of Windows that matter here.
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
from mmf_win.dataset.annotations import missing_dataset_hint, splits_on_disk
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

_TORCH_PACKAGES = ("torch", "torchvision")  # which are built for a GPU or the CPU
_TORCH_INDEX_URL = "https://download.pytorch.org/whl/"
_TORCH_VERSION_LINE = re.compile(r"^(cuda|hip)\b[^=\n]*= *(?:['\"]([^'\"]+)['\"]|None)", re.MULTILINE)
# https://learn.microsoft.com/windows/win32/fileio/maximum-file-path-limitation
_LONG_PATHS = (r"SYSTEM\CurrentControlSet\Control\FileSystem", "LongPathsEnabled")
# https://learn.microsoft.com/windows/apps/get-started/enable-your-device-for-development
_APP_MODEL_KEY = r"SOFTWARE\Microsoft\Windows\CurrentVersion\AppModelUnlock"
_DEVELOPER_MODE = (_APP_MODEL_KEY, "AllowDevelopmentWithoutDevLicense")
_INSTALL_HINT = "`mmfw setup --torch` prints the pip command that installs the build for this machine"
# A checkpoint of a BERT model, its optimizer included, is about 1.3 GB, and a few are kept.
_MIN_FREE_BYTES = 10 << 30


@dataclass(frozen=True)
class MmfState:
    """The MMF that runs.

    Attributes:
        installed: the copy; None when there is none.
        problems: what is wrong with it, a line for each file; None where nothing tells.
        error: why there is none, or why it cannot be used.
    """

    installed: MmfInstall | None
    problems: tuple[str, ...] | None = ()
    error: MmfEnvironmentError | None = None


def survey(places: MmfPaths) -> dict[str, Any]:
    """Look at everything; nothing heavy is imported, and nothing is changed.

    What is returned are plain values, but for ``mmf``, ``torch``, and ``missing``: the errors that training
    would end with, in the order in which to repair them.
    """
    mmf, torch, cuda = survey_mmf(), survey_torch(), machine.survey_cuda()
    images = places.dataset.images / "img"
    system = {"mmfw": __version__, "python": sys.version.split()[0], "system": platform.platform()}
    packages = (*required_packages(), *required_packages("train"))
    found = {
        "versions": system | {name: installed_version(name) for name in packages},
        "mmf": mmf,
        "folders": list(_survey_folders(places, mmf)),
        "dataset": {
            "splits": sorted(splits_on_disk(places.dataset)),
            "images": sum(1 for _ in images.iterdir()) if images.is_dir() else 0,
            "features": (places.dataset.features / "detectron.lmdb").is_dir(),
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
        "fits": micro_batch_store.load(),
    }
    return found | {"missing": list(_find_missing(found, unused_gpu_error(torch, cuda), places))}


def required_packages(extra: str = "") -> list[str]:
    """The packages that mmfw requires, or those that an extra adds; none where mmfw is not installed."""
    with suppress(importlib.metadata.PackageNotFoundError):  # it runs from a checkout
        listed = "\n".join(importlib.metadata.requires("mmf-win") or ())
        found = re.findall(r"^([\w.-]+)(?:.* extra == ['\"](\w+))?", listed, re.MULTILINE)
        return [name for name, of_extra in found if of_extra == extra]
    return []


def installed_version(distribution: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def survey_mmf(*, full: bool = False) -> MmfState:
    """Verify the MMF that runs; ``full`` reads each of its files."""
    try:
        installed = find_mmf()
    except MmfEnvironmentError as error:
        return MmfState(None, (str(error),) if has_selected_mmf() else (), error)
    changed = find_changed_files(installed, full=full)
    if not changed:
        return MmfState(installed, None if changed is None else ())
    message = f"changed or missing files of MMF: {len(changed)}"
    return MmfState(installed, tuple(changed), MmfEnvironmentError(message, hint="run `mmfw setup`"))


def _survey_folders(places: MmfPaths, mmf: MmfState) -> Iterator[dict[str, Any]]:
    """Return where everything is; MMF and mmfw make theirs when they need them.

    ``named_by`` is the option or variable that names a folder of MMF's, or that it is the default.
    """
    usual, of_cache = MmfPaths.resolve(), ("MMF_CACHE_DIR", "TORCH_HOME", "XDG_CACHE_HOME")
    by = {"data": ("MMF_DATA_DIR", *of_cache), "cache": of_cache, "runs": ("MMF_SAVE_DIR",)}
    named_by = {name: next(filter(os.environ.get, variables), "default") for name, variables in by.items()}
    named_by |= {"data": "--data-dir"} if places.data_dir != usual.data_dir else {}
    named_by |= {"runs": "--save-dir"} if places.save_dir != usual.save_dir else {}
    paths = {
        "data": places.data_dir,
        "cache": places.cache_dir,
        "runs": places.save_dir,
        "dataset": places.dataset.root,
        "presets": presets_dir(),
        "tool home": mmfw_home(),
        "decoded images": places.image_cache_dir,
        "mmf": mmf.installed.root if mmf.installed else None,
    }
    for name, path in paths.items():
        if path is not None:
            exists, free = path.is_dir(), free_space(path)
            yield {"name": name, "path": path, "named_by": named_by.get(name), "exists": exists, "free": free}


def _find_missing(
    survey_result: dict[str, Any], gpu_error: MmfEnvironmentError | None, places: MmfPaths
) -> Iterator[MmfwError]:
    if not required_packages():
        message = "mmfw itself is not installed, so it is not known which packages are missing"
        yield MmfEnvironmentError(message, hint=pip_hint())
    # PyTorch first, since with the rest pip would bring the build for CUDA on any Linux.
    hints: dict[tuple[str, ...], str] = {_TORCH_PACKAGES: f"run `{format_command(*torch_install_command())}`"}
    hints |= {tuple(required_packages(extra)): pip_hint(extra and f"[{extra}]") for extra in ("", "train")}
    for names, hint in hints.items():
        missing = [name for name in names if survey_result["versions"].get(name, "") is None]
        if rest := [name for name in missing if names is _TORCH_PACKAGES or name not in _TORCH_PACKAGES]:
            yield MmfEnvironmentError(f"not installed: {', '.join(rest)}", hint=hint)
    yield from (error for error in (gpu_error, survey_result["mmf"].error) if error is not None)
    try:
        require_complete_install(places.dataset.root)
    except (DatasetError, InUseError) as error:
        yield error
    else:
        if not survey_result["dataset"]["splits"] or not survey_result["dataset"]["images"]:
            message = f"no Hateful Memes dataset in {places.dataset.root}"
            yield DatasetError(message, hint=missing_dataset_hint(places.dataset))
    try:
        require_creatable_folders(places)
    except MmfwError as error:
        yield error
    for folder in survey_result["folders"]:
        where, free = f"for {folder['name']} in {folder['path']}", folder["free"]
        if free is None:
            yield UsageError(f"no drive {where}", hint="choose another folder")
        elif folder["name"] in ("data", "runs") and free < _MIN_FREE_BYTES:
            yield ResourceError(f"little disk space {where}", hint="free some space there")


class _CudaBuild(NamedTuple):
    """A build of PyTorch for CUDA.

    Attributes:
        cuda: its version.
        needs: the CUDA that the driver has to run at least.
        oldest, newest: the compute capabilities that it has code for.
    """

    cuda: str
    min_driver_cuda: tuple[int, int]
    min_capability: tuple[int, int]
    max_capability: tuple[int, int]

    def supports(self, cuda: machine.Cuda) -> bool:
        """Return whether it has code for one of the GPUs."""
        return any(
            self.min_capability <= capability <= self.max_capability for capability in cuda.capabilities
        )


# The newest first. What they have code for: https://github.com/pytorch/pytorch/issues/178665
_CUDA_BUILDS = (
    _CudaBuild("13.0", (13, 0), min_capability=(7, 5), max_capability=(12, 9)),
    _CudaBuild("12.6", (12, 0), min_capability=(5, 0), max_capability=(9, 0)),
)


@dataclass(frozen=True)
class TorchBuild:
    """The versions of CUDA and ROCm that the installed torch was built for; None for what it was not."""

    cuda: str | None
    rocm: str | None = None

    @property
    def target(self) -> str:
        """For people."""
        return f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.rocm}" if self.rocm else "the CPU"


def survey_torch() -> TorchBuild | None:
    """The installed torch, which is not imported; None where there is none, or it does not say."""
    spec = find_spec("torch")
    if spec is not None and spec.origin is not None:
        with suppress(OSError, ValueError, KeyError):
            text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
            found = dict(_TORCH_VERSION_LINE.findall(text))
            return TorchBuild(found["cuda"] or None, found.get("hip") or None)
    return None


def unused_gpu_error(torch: TorchBuild | None, cuda: machine.Cuda | None) -> MmfEnvironmentError | None:
    """The error that torch cannot use the GPU; None where it can, or where no other build could.

    A driver runs what was built for a newer CUDA of the same major version.
    """
    if torch is None or cuda is None or (torch.cuda is None and _best_build_name(cuda) == "cpu"):
        return None
    if torch.cuda is None:
        return MmfEnvironmentError(
            f"there is a GPU, and torch is built for {torch.target}", hint=_INSTALL_HINT
        )
    if not all(build.supports(cuda) for build in _CUDA_BUILDS if build.cuda == torch.cuda):
        message = f"torch is built for CUDA {torch.cuda}, which has no code for the GPU"
        return MmfEnvironmentError(message, hint=_INSTALL_HINT)
    if int(torch.cuda.partition(".")[0]) > cuda.newest[0]:
        newest = ".".join(map(str, cuda.newest))
        message = f"torch is built for CUDA {torch.cuda}, and NVIDIA's driver runs CUDA {newest}"
        return MmfEnvironmentError(message, hint=f"update the driver, or {_INSTALL_HINT}")
    return None


def torch_install_command() -> tuple[str, ...]:
    """The words of the command that gets the build for this machine, at the tested version."""
    pins = dict(re.findall(r"^(\S+)==(\S+)$", constraints_file().read_text(encoding="utf-8"), re.MULTILINE))
    index, wanted = [], [f"{package}=={pins[package]}" for package in _TORCH_PACKAGES]
    if sys.platform != "darwin":  # which has one build, on PyPI
        name = _best_build_name(machine.survey_cuda())
        # A local version is above the same without one, and named it is sure to come from PyTorch's index.
        index, wanted = (
            ["--extra-index-url", _TORCH_INDEX_URL + name],
            [f"{package}+{name}" for package in wanted],
        )
    return ("pip", "install", "-c", str(constraints_file()), *index, *wanted)


def _best_build_name(cuda: machine.Cuda | None) -> str:
    """The build that suits, as PyTorch's index calls it: the newest that can use one of the GPUs."""
    usable = (
        build
        for build in _CUDA_BUILDS
        if cuda and build.supports(cuda) and cuda.newest >= build.min_driver_cuda
    )
    return next((f"cu{build.cuda.replace('.', '')}" for build in usable), "cpu")


def survey_windows_settings() -> list[dict[str, str | None]]:
    """The settings of Windows that matter here; none on other systems.

    ``hint`` is what a setting costs as it is, and what changes it; None where it costs nothing.
    """
    found: list[dict[str, str | None]] = []
    if sys.platform == "win32":
        for name, (key, value), cost in (
            ("long paths", _LONG_PATHS, "paths end at 260 characters"),
            ("developer mode", _DEVELOPER_MODE, "without links, Hugging Face's cache may take more space"),
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
